#include "engine/text/jinja/access.h"

#include <algorithm>
#include <charconv>

#include "engine/text/jinja/characters.h"
#include "engine/text/jinja/methods.h"

namespace runnel::text::jinja {
namespace {

using Kind = Sequence::Kind;

Value bound(const Value &self, Method method, const StringRef &name) {
    return std::make_shared<const Function>(Function{
        name->text.bytes(), "builtin_function_or_method",
        [self, method](Runtime &runtime, Arguments &arguments) { return method(runtime, self, arguments); },
        nesting_around(self)});
}

// The value's method of this name; Undefined if it has none.
Value method_of(const Value &value, const StringRef &name) {
    if (const Method method = find_method(value, name->text.view())) return bound(value, method, name);
    const std::string_view text = name->text.view();
    const bool is_internal = text.size() > 4 && text.starts_with("__") && text.ends_with("__");
    if (is_mutating(value, text) || is_internal) return Undefined{name, value.type(), true};
    return Undefined{name, value.type()};
}

Value neighbor(const Loop &loop, bool previous, const StringRef &name) {
    const auto &items = loop.items->items;
    if (previous ? loop.index == 0 : loop.index + 1 >= items.size()) return Undefined{name, Type::Loop};
    return previous ? items[loop.index - 1] : items[loop.index + 1];
}

Value loop_attribute(const Value &value, const StringRef &name) {
    const Loop &loop = *value.loop();
    const std::string_view wanted = name->text.view();
    const size_t length = loop.items->items.size();
    const auto number = [](size_t n) { return Value::integer(static_cast<int64_t>(n)); };
    if (wanted == "index") return number(loop.index + 1);
    if (wanted == "index0") return number(loop.index);
    if (wanted == "first") return Value::boolean(loop.index == 0);
    if (wanted == "last") return Value::boolean(loop.index + 1 == length);
    if (wanted == "length") return number(length);
    if (wanted == "revindex") return number(length - loop.index);
    if (wanted == "revindex0") return number(length - loop.index - 1);
    if (wanted == "depth") return number(loop.depth + 1);
    if (wanted == "depth0") return number(loop.depth);
    if (wanted == "previtem") return neighbor(loop, true, name);
    if (wanted == "nextitem") return neighbor(loop, false, name);
    return method_of(value, name);
}

Value group_attribute(const Value &value, const StringRef &name) {
    // The result of `groupby`: pairs whose parts have names. Other pairs have none in Python, but no template
    // uses these names on them.
    const auto &items = value.sequence()->items;
    if (value.sequence()->kind == Kind::Tuple && items.size() == 2) {
        if (name->text.view() == "grouper") return items[0];
        if (name->text.view() == "list") return items[1];
    }
    return method_of(value, name);
}

Value missing(const Value &value, const Value &index) {
    return Undefined{index.is_string() ? index.string() : nullptr, value.type()};
}

// Python's rule: a negative index counts from the end.
std::optional<size_t> position(const Value &index, size_t size) {
    if (!is_integral(index)) return std::nullopt;
    int64_t at = as_integer(index);
    if (at < 0) at += static_cast<int64_t>(size);
    if (at < 0 || at >= static_cast<int64_t>(size)) return std::nullopt;
    return static_cast<size_t>(at);
}

Value character_at(Runtime &runtime, const Value &value, const Value &index) {
    runtime.work(value.text().size());
    const auto offsets = character_offsets(value.text().view());
    const auto at = position(index, offsets.size() - 1);
    if (!at) return missing(value, index);
    return runtime.string(value.text().substr(offsets[*at], offsets[*at + 1] - offsets[*at]),
                          value.string()->markup);
}

struct Bounds {
    int64_t start, step;
    size_t count;
};

std::optional<int64_t> slice_index(const Value &value) {
    if (value.is_none()) return std::nullopt;
    if (!is_integral(value)) {
        require_defined(value);
        fail("slice indices must be integers or None or have an __index__ method");
    }
    return as_integer(value);
}

// Like Python's slice.indices().
Bounds bounds_of(const Value &start, const Value &stop, const Value &step, size_t size) {
    const auto length = static_cast<int64_t>(size);
    const int64_t stride = slice_index(step).value_or(1);
    if (stride == 0) fail("slice step cannot be zero");
    const int64_t lowest = stride < 0 ? -1 : 0, highest = stride < 0 ? length - 1 : length;
    const auto clip = [&](const Value &value, int64_t preset) {
        const auto given_index = slice_index(value);
        if (!given_index) return preset;
        const int64_t at = *given_index < 0 ? std::max(*given_index, -length - 1) + length : *given_index;
        return std::clamp(at, lowest, highest);
    };
    const int64_t begin = clip(start, stride < 0 ? highest : 0), end = clip(stop, stride < 0 ? -1 : length);
    const int64_t distance = stride > 0 ? end - begin : begin - end;
    const uint64_t size_of_step =
        stride > 0 ? static_cast<uint64_t>(stride) : uint64_t{0} - static_cast<uint64_t>(stride);
    const size_t count = distance <= 0 ? 0 : (static_cast<uint64_t>(distance) - 1) / size_of_step + 1;
    return {begin, stride, count};
}

Value slice_text(Runtime &runtime, const Value &value, const Value &start, const Value &stop,
                 const Value &step) {
    const MarkedText &text = value.text();
    runtime.work(text.size() * 8);
    const auto offsets = character_offsets(text.view());
    const Bounds bounds = bounds_of(start, stop, step, offsets.size() - 1);
    if (bounds.count == 0) return Value::string(MarkedText(), value.string()->markup);
    if (bounds.step == 1) {
        const auto first = static_cast<size_t>(bounds.start);
        const size_t begin = offsets[first], end = offsets[first + bounds.count];
        return runtime.string(text.substr(begin, end - begin), value.string()->markup);
    }
    MarkedText result;
    int64_t at = bounds.start;
    for (size_t i = 0; i < bounds.count; ++i) {
        const auto character = static_cast<size_t>(at);
        result.append(text, offsets[character], offsets[character + 1] - offsets[character]);
        if (i + 1 < bounds.count) at += bounds.step;
    }
    return runtime.string(std::move(result), value.string()->markup);
}

std::vector<Value> characters_of(Runtime &runtime, const MarkedText &text) {
    const auto offsets = character_offsets(text.view());
    runtime.charge_items(offsets.size());
    std::vector<Value> items;
    items.reserve(offsets.size() - 1);
    for (size_t i = 0; i + 1 < offsets.size(); ++i)
        items.push_back(runtime.string(text.substr(offsets[i], offsets[i + 1] - offsets[i])));
    return items;
}

}  // namespace

Value attribute(Runtime &runtime, const Value &value, const StringRef &name) {
    switch (value.type()) {
        case Type::Undefined:
            fail_undefined(value.undefined());
        case Type::Dict: {
            // A method hides an item of the same name: d.items is the method, d['items'] the item.
            if (find_method(value, name->text.view()) || is_mutating(value, name->text.view()))
                return method_of(value, name);
            const Value *found = value.dict()->find(Value(name));
            return found ? *found : method_of(value, name);
        }
        case Type::Namespace: {
            const Value *found = value.name_space()->attributes.find(Value(name));
            return found ? *found : Value(Undefined{name, Type::Namespace});
        }
        case Type::Loop:
            return loop_attribute(value, name);
        case Type::Cycler:
            if (name->text.view() == "current") return value.cycler()->items[value.cycler()->position];
            return method_of(value, name);
        case Type::Function:
            if (name->text.view() == "name") return runtime.string(MarkedText(value.function()->name));
            return Undefined{name, Type::Function};
        case Type::Sequence:
            return group_attribute(value, name);
        default:
            return method_of(value, name);
    }
}

Value item(Runtime &runtime, const Value &value, const Value &index) {
    runtime.step();
    switch (value.type()) {
        case Type::Undefined:
            fail_undefined(value.undefined());
        case Type::Dict: {
            const bool hashable = !index.is(Type::Dict) && !index.is(Type::Sequence);
            const Value *found =
                hashable || (index.is(Type::Sequence) && index.sequence()->kind == Kind::Tuple)
                    ? value.dict()->find(index)
                    : nullptr;
            if (found) return *found;
            break;
        }
        case Type::String:
            if (!index.is_string()) return character_at(runtime, value, index);
            break;
        case Type::Sequence: {
            const Sequence &sequence = *value.sequence();
            if (sequence.kind > Kind::Range) break;
            if (const auto at = position(index, sequence.items.size())) return sequence.items[*at];
            break;
        }
        default:
            break;
    }
    return index.is_string() ? attribute(runtime, value, index.string()) : missing(value, index);
}

Value slice(Runtime &runtime, const Value &value, const Value &start, const Value &stop, const Value &step) {
    require_defined(value);
    if (value.is_string()) return slice_text(runtime, value, start, stop, step);
    // Slices of other types are undefined, like missing items.
    if (!value.is(Type::Sequence) || value.sequence()->kind > Kind::Range)
        return Undefined{nullptr, value.type()};
    const Sequence &sequence = *value.sequence();
    const Bounds bounds = bounds_of(start, stop, step, sequence.items.size());
    runtime.charge_items(bounds.count);
    std::vector<Value> items;
    items.reserve(bounds.count);
    int64_t at = bounds.start;
    for (size_t i = 0; i < bounds.count; ++i) {
        items.push_back(sequence.items[static_cast<size_t>(at)]);
        if (i + 1 < bounds.count) at += bounds.step;
    }
    auto result = make_sequence(sequence.kind, std::move(items));
    result->start = sequence.start + bounds.start * sequence.stride;
    result->stride = sequence.stride;
    result->stop = result->start + static_cast<int64_t>(bounds.count) * sequence.stride;
    return result;
}

std::vector<Value> items_of(Runtime &runtime, const Value &value) {
    switch (value.type()) {
        case Type::Undefined:
            if (value.undefined().unsafe) fail_undefined(value.undefined());
            return {};
        case Type::String:
            return characters_of(runtime, value.text());
        case Type::Dict: {
            runtime.charge_items(value.dict()->size());
            std::vector<Value> keys;
            for (const Dict::Entry &entry : value.dict()->entries()) keys.push_back(entry.key);
            return keys;
        }
        case Type::Sequence: {
            Sequence &sequence = *value.sequence();
            runtime.charge_items(sequence.items.size());
            if (!sequence.is_iterator()) return sequence.items;
            const auto first = sequence.items.begin() + static_cast<std::ptrdiff_t>(sequence.next);
            std::vector<Value> rest(first, sequence.items.end());
            sequence.next = sequence.items.size();
            return rest;
        }
        default:
            fail("'" + std::string(type_name(value)) + "' object is not iterable");
    }
}

std::shared_ptr<const Sequence> sequence_of(Runtime &runtime, const Value &value) {
    if (value.is(Type::Sequence) && !value.sequence()->is_iterator()) return value.sequence();
    return make_sequence(Kind::List, items_of(runtime, value));
}

int64_t length_of(Runtime &runtime, const Value &value) {
    size_t length = 0;
    if (value.is_string()) {
        runtime.work(value.text().size());
        length = count_characters(value.text().view());
    } else if (value.is(Type::Dict)) {
        length = value.dict()->size();
    } else if (value.is(Type::Sequence) && !value.sequence()->is_iterator()) {
        length = value.sequence()->items.size();
    } else if (value.is(Type::Loop)) {
        length = value.loop()->items->items.size();
    } else if (!value.is_undefined() || value.undefined().unsafe) {
        if (value.is_undefined()) fail_undefined(value.undefined());
        fail("object of type '" + std::string(type_name(value)) + "' has no len()");
    }
    return static_cast<int64_t>(length);
}

Value attribute_path(Runtime &runtime, const Value &value, const Value &path) {
    if (!path.is_string()) return item(runtime, value, path);
    Value found = value;
    std::string_view rest = path.text().view();
    for (;;) {
        const size_t dot = std::min(rest.find('.'), rest.size());
        const std::string_view part = rest.substr(0, dot);
        const bool is_number = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
        int64_t index = 0;
        const auto error = std::from_chars(part.data(), part.data() + part.size(), index).ec;
        found = item(runtime, found,
                     is_number && error == std::errc() ? Value::integer(index)
                                                       : Value::string(MarkedText(std::string(part))));
        if (dot == rest.size()) return found;
        rest.remove_prefix(dot + 1);
    }
}

}  // namespace runnel::text::jinja
