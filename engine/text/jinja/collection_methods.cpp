// The methods of dict, list, tuple, numbers, loops and cyclers; find_method().
#include <algorithm>
#include <cmath>
#include <span>

#include "engine/text/jinja/access.h"
#include "engine/text/jinja/methods.h"

namespace runnel::text::jinja {
namespace {

using Kind = Sequence::Kind;

template <Kind kind>
Value view_method(Runtime &runtime, const Value &self, Arguments &arguments) {
    bind("dict method", arguments, {});
    const auto &entries = self.dict()->entries();
    runtime.charge_items(entries.size() * (kind == Kind::Items ? 5 : 1));
    std::vector<Value> items;
    items.reserve(entries.size());
    for (const Dict::Entry &entry : entries)
        items.push_back(kind == Kind::Keys     ? entry.key
                        : kind == Kind::Values ? entry.value
                                               : Value::tuple({entry.key, entry.value}));
    return make_sequence(kind, std::move(items));
}

Value get_method(Runtime &, const Value &self, Arguments &arguments) {
    const auto bound = bind("get", arguments, {"key", "default"}, 1);
    const Value *found = self.dict()->find(*bound[0]);
    return found ? *found : bound[1] ? *bound[1] : Value::none();
}

Value copy_method(Runtime &, const Value &self, Arguments &arguments) {
    bind("copy", arguments, {});
    return self;  // immutable, so a copy is not needed
}

Value index_method(Runtime &runtime, const Value &self, Arguments &arguments) {
    const auto bound = bind("index", arguments, {"value", "start", "stop"}, 1);
    const auto &items = self.sequence()->items;
    const auto length = static_cast<int64_t>(items.size());
    const auto limit = [&](const Value *value, int64_t preset) {
        const int64_t at = value ? integer_argument(*value) : preset;
        return std::clamp<int64_t>(at < 0 ? std::max<int64_t>(at, -length) + length : at, 0, length);
    };
    for (int64_t i = limit(bound[1], 0), end = limit(bound[2], length); i < end; ++i)
        if (equal(runtime, items[static_cast<size_t>(i)], *bound[0])) return Value::integer(i);
    fail("this value is not in the " + std::string(type_name(self)));
}

Value count_method(Runtime &runtime, const Value &self, Arguments &arguments) {
    const auto bound = bind("count", arguments, {"value"}, 1);
    int64_t count = 0;
    for (const Value &item : self.sequence()->items) count += equal(runtime, item, *bound[0]);
    return Value::integer(count);
}

Value is_integer_method(Runtime &, const Value &self, Arguments &arguments) {
    bind("is_integer", arguments, {});
    const double value = as_double(self);
    return Value::boolean(std::isfinite(value) && std::floor(value) == value);
}

Value bit_length_method(Runtime &, const Value &self, Arguments &arguments) {
    bind("bit_length", arguments, {});
    const int64_t value = as_integer(self);
    const uint64_t size =
        value < 0 ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
    return Value::integer(size == 0 ? 0 : 64 - __builtin_clzll(size));
}

Value cycle_method(Runtime &, const Value &self, Arguments &arguments) {
    if (arguments.positional.empty()) fail("no items for cycling given");
    return arguments.positional[self.loop()->index % arguments.positional.size()];
}

Value changed_method(Runtime &runtime, const Value &self, Arguments &arguments) {
    // Containers are rejected, because they could contain the loop itself.
    for (const Value &value : arguments.positional)
        if (value.type() > Type::String) fail("loop.changed() compares texts and numbers only");
    Loop &loop = *self.loop();
    const auto &now = arguments.positional;
    bool same = std::exchange(loop.was_asked, true) && loop.changed.size() == now.size();
    for (size_t i = 0; same && i < now.size(); ++i) same = equal(runtime, loop.changed[i], now[i]);
    loop.changed = now;
    return Value::boolean(!same);
}

Value next_method(Runtime &, const Value &self, Arguments &arguments) {
    bind("next", arguments, {});
    Cycler &cycler = *self.cycler();
    const Value current = cycler.items[cycler.position];
    cycler.position = (cycler.position + 1) % cycler.items.size();
    return current;
}

Value reset_method(Runtime &, const Value &self, Arguments &arguments) {
    bind("reset", arguments, {});
    self.cycler()->position = 0;
    return Value::none();
}

constexpr NamedMethod kDictMethods[] = {{"items", view_method<Kind::Items>},
                                        {"get", get_method},
                                        {"keys", view_method<Kind::Keys>},
                                        {"values", view_method<Kind::Values>},
                                        {"copy", copy_method}};
constexpr NamedMethod kListMethods[] = {
    {"index", index_method}, {"count", count_method}, {"copy", copy_method}};
constexpr NamedMethod kTupleMethods[] = {{"index", index_method}, {"count", count_method}};
constexpr NamedMethod kNumberMethods[] = {{"is_integer", is_integer_method},
                                          {"bit_length", bit_length_method}};
constexpr NamedMethod kLoopMethods[] = {{"cycle", cycle_method}, {"changed", changed_method}};
constexpr NamedMethod kCyclerMethods[] = {{"next", next_method}, {"reset", reset_method}};

std::span<const NamedMethod> methods_of(const Value &value) {
    switch (value.type()) {
        case Type::Dict:
            return kDictMethods;
        case Type::Sequence:
            if (value.sequence()->kind == Kind::List) return kListMethods;
            if (value.sequence()->kind <= Kind::Range) return kTupleMethods;
            return {};
        case Type::Boolean:
        case Type::Integer:
            return std::span(kNumberMethods).subspan(1);
        case Type::Float:
            return std::span(kNumberMethods).first(1);
        case Type::Loop:
            return kLoopMethods;
        case Type::Cycler:
            return kCyclerMethods;
        default:
            return {};
    }
}

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

Method find_collection_method(const Value &value, std::string_view name) {
    for (const NamedMethod &entry : methods_of(value))
        if (entry.name == name) return entry.method;
    return nullptr;
}

Method find_method(const Value &value, std::string_view name) {
    return value.is_string() ? find_string_method(name) : find_collection_method(value, name);
}

bool is_mutating(const Value &value, std::string_view name) {
    if (value.is(Type::Dict)) return is_one_of(name, {"pop", "update", "clear", "popitem", "setdefault"});
    if (!value.is(Type::Sequence) || value.sequence()->kind != Kind::List) return false;
    return is_one_of(name, {"append", "pop", "extend", "insert", "remove", "reverse", "sort", "clear"});
}

}  // namespace runnel::text::jinja
