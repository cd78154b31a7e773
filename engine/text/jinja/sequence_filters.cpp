// Filters on sequences.
#include <algorithm>

#include "engine/text/jinja/access.h"
#include "engine/text/jinja/characters.h"
#include "engine/text/jinja/filters.h"
#include "engine/text/jinja/format.h"
#include "engine/text/jinja/methods.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/predicates.h"

namespace runnel::text::jinja {
namespace {

using Kind = Sequence::Kind;
using Items = std::vector<Value>;

const Value &item_at(const Arguments &arguments, size_t i, const char *missing) {
    if (i >= arguments.positional.size()) fail(missing);
    return arguments.positional[i];
}

// The remaining arguments, for the filter or test that is applied to every item.
Arguments behind(const Arguments &arguments, size_t count) {
    Arguments rest;
    rest.keyword = arguments.keyword;
    rest.positional.assign(arguments.positional.begin() + static_cast<std::ptrdiff_t>(count),
                           arguments.positional.end());
    return rest;
}

Value length_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    bind("length", arguments, {});
    return Value::integer(length_of(runtime, input));
}

Value first_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    bind("first", arguments, {});
    if (input.is(Type::Sequence)) {  // an iterator gives only one item
        Sequence &sequence = *input.sequence();
        const size_t at = sequence.is_iterator() ? sequence.next : 0;
        if (at >= sequence.items.size()) return Undefined{nullptr, Type::Sequence};
        if (sequence.is_iterator()) ++sequence.next;
        return sequence.items[at];
    }
    const Items items = items_of(runtime, input);
    return items.empty() ? Value(Undefined{nullptr, input.type()}) : items.front();
}

Value last_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    bind("last", arguments, {});
    if (input.is(Type::Sequence) && input.sequence()->is_iterator())
        fail("'generator' object is not reversible");
    const auto sequence = sequence_of(runtime, input);
    return sequence->items.empty() ? Value(Undefined{nullptr, input.type()}) : sequence->items.back();
}

Value join_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    const auto bound = bind("join", arguments, {"d", "attribute"});
    const MarkedText separator = bound[0] ? to_text(runtime, *bound[0]) : MarkedText();
    const auto sequence = sequence_of(runtime, input);
    MarkedText result;
    for (size_t i = 0; i < sequence->items.size(); ++i) {
        runtime.charge(separator.size());
        if (i > 0) result.append(separator);
        const Value &item = sequence->items[i];
        append_text(runtime, result, given(bound[1]) ? attribute_path(runtime, item, *bound[1]) : item);
    }
    return runtime.string(std::move(result));
}

Value list_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    bind("list", arguments, {});
    return Value::list(items_of(runtime, input));
}

Value reverse_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    bind("reverse", arguments, {});
    if (input.is_string()) return slice(runtime, input, Value::none(), Value::none(), Value::integer(-1));
    const bool one_shot = input.is(Type::Sequence) && input.sequence()->is_iterator();
    Items items = items_of(runtime, input);
    std::reverse(items.begin(), items.end());
    return one_shot ? Value::list(std::move(items)) : Value::iterator(std::move(items));
}

// The keys by which sort, unique, min, max and groupby compare items.
class KeyOf {
  public:
    KeyOf(Runtime &runtime, const Value *attribute, const Value *case_sensitive,
          const Value *preset = nullptr)
        : runtime_(runtime),
          attribute_(given(attribute) ? attribute : nullptr),
          preset_(given(preset) ? preset : nullptr),
          folds_(!case_sensitive || !is_true(*case_sensitive)) {}

    Value operator()(const Value &item) const { return fold(attribute_ ? part(item, *attribute_) : item); }

    // "a,b": by a, then by b.
    Value several(const Value &item) const {
        if (!attribute_ || !attribute_->is_string() ||
            attribute_->text().view().find(',') == std::string_view::npos)
            return (*this)(item);
        Items keys;
        std::string_view rest = attribute_->text().view();
        for (;;) {
            const size_t comma = std::min(rest.find(','), rest.size());
            keys.push_back(fold(part(item, Value::string(std::string(rest.substr(0, comma))))));
            if (comma == rest.size()) return Value::list(std::move(keys));
            rest.remove_prefix(comma + 1);
        }
    }

  private:
    Value part(const Value &item, const Value &attribute) const {
        Value found = attribute_path(runtime_, item, attribute);
        return found.is_undefined() && preset_ ? *preset_ : found;
    }
    Value fold(const Value &key) const {
        if (!folds_ || !key.is_string()) return key;
        return runtime_.string(MarkedText(lower(key.text().view()), key.text().origin()));
    }
    Runtime &runtime_;
    const Value *attribute_, *preset_;
    bool folds_;
};

using Keyed = std::vector<std::pair<Value, Value>>;  // key, item

// Stable, also when reversed.
void sort_by_key(Runtime &runtime, Keyed &items, bool reverse) {
    runtime.charge(items.size() * sizeof(items[0]));
    std::stable_sort(items.begin(), items.end(), [&](const auto &a, const auto &b) {
        return (reverse ? compare(runtime, b.first, a.first) : compare(runtime, a.first, b.first)) < 0;
    });
}

Items without_keys(Keyed items) {
    Items result;
    result.reserve(items.size());
    for (auto &entry : items) result.push_back(std::move(entry.second));
    return result;
}

Value sort_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    const auto bound = bind("sort", arguments, {"reverse", "case_sensitive", "attribute"});
    const KeyOf key(runtime, bound[2], bound[1]);
    Keyed items;
    for (const Value &item : items_of(runtime, input)) items.emplace_back(key.several(item), item);
    sort_by_key(runtime, items, bound[0] && is_true(*bound[0]));
    return Value::list(without_keys(std::move(items)));
}

Value unique_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    const auto bound = bind("unique", arguments, {"case_sensitive", "attribute"});
    const KeyOf key(runtime, bound[1], bound[0]);
    Dict seen;
    Items items;
    for (const Value &item : items_of(runtime, input)) {
        runtime.charge(sizeof(Dict::Entry) * 2);
        const size_t before = seen.size();
        seen.set(key(item), Value::none());
        if (seen.size() > before) items.push_back(item);
    }
    return Value::iterator(std::move(items));
}

template <bool largest>
Value extreme_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    const auto bound = bind(largest ? "max" : "min", arguments, {"case_sensitive", "attribute"});
    const KeyOf key(runtime, bound[1], bound[0]);
    const Items items = items_of(runtime, input);
    if (items.empty()) return Undefined{nullptr, Type::Sequence};
    Value best = items[0], best_key = key(best);
    for (size_t i = 1; i < items.size(); ++i) {
        Value next = key(items[i]);
        const int order = compare(runtime, next, best_key);
        if (largest ? order <= 0 : order >= 0) continue;
        best = items[i];
        best_key = std::move(next);
    }
    return best;
}

Value groupby_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    const auto bound = bind("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
    const KeyOf key(runtime, bound[0], bound[2], bound[1]);
    const Value sensitive = Value::boolean(true);
    const KeyOf exact(runtime, bound[0], &sensitive, bound[1]);
    Keyed items;
    for (const Value &item : items_of(runtime, input)) items.emplace_back(key(item), item);
    sort_by_key(runtime, items, false);
    Items groups;
    for (size_t begin = 0, end = 0; begin < items.size(); begin = end) {
        Items members;
        while (end < items.size() && equal(runtime, items[end].first, items[begin].first))
            members.push_back(items[end++].second);
        if (members.empty()) members.push_back(items[end++].second);  // a key unequal to itself (NaN)
        const Value grouper = exact(members[0]);
        groups.push_back(Value::tuple({grouper, Value::list(std::move(members))}));
    }
    return Value::list(std::move(groups));
}

Value map_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    if (!is_true(input)) return Value::iterator({});
    Items items = items_of(runtime, input);
    if (arguments.positional.empty() && !arguments.keyword.empty()) {
        const auto bound = bind("map", arguments, {"attribute", "default"});
        if (!bound[0]) fail("map requires a filter argument");
        for (Value &item : items) {
            item = attribute_path(runtime, item, *bound[0]);
            if (item.is_undefined() && given(bound[1])) item = *bound[1];
        }
        return Value::iterator(std::move(items));
    }
    const Value &name = item_at(arguments, 0, "map requires a filter argument");
    const FilterFunction filter = find_filter(string_argument(name).view());
    if (!filter) fail("No filter named '" + name.text().bytes() + "'.");
    for (Value &item : items) {
        Arguments rest = behind(arguments, 1);
        runtime.step();
        item = filter(runtime, item, rest);
    }
    return Value::iterator(std::move(items));
}

// select, reject: by a test, or by truth value. With `attribute`, by an attribute of each item.
template <bool wanted, bool attribute>
Value select_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    if (!is_true(input)) return Value::iterator({});
    const Value *path = attribute ? &item_at(arguments, 0, "Missing parameter for attribute name") : nullptr;
    const size_t first = attribute ? 1 : 0;
    TestFunction test = nullptr;
    if (arguments.positional.size() > first) {
        const MarkedText &name = string_argument(arguments.positional[first]);
        test = find_test(name.view());
        if (!test) fail("No test named '" + name.bytes() + "'.");
    }
    Items kept;
    for (const Value &item : items_of(runtime, input)) {
        runtime.step();
        const Value value = path ? attribute_path(runtime, item, *path) : item;
        bool holds = false;
        if (test) {
            Arguments rest = behind(arguments, first + 1);
            holds = test(runtime, value, rest);
        } else {
            holds = is_true(value);
        }
        if (holds == wanted) kept.push_back(item);
    }
    return Value::iterator(std::move(kept));
}

// A number of groups or items given by the template.
size_t count_argument(const Value &value) {
    const int64_t count = integer_argument(value);
    if (count <= 0 || count > 100000) fail("cannot make this number of parts");
    return static_cast<size_t>(count);
}

Value batch_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    const auto bound = bind("batch", arguments, {"linecount", "fill_with"}, 1);
    const size_t size = count_argument(*bound[0]);
    Items batches, batch;
    for (const Value &item : items_of(runtime, input)) {
        if (batch.size() == size) batches.push_back(Value::list(std::exchange(batch, {})));
        batch.push_back(item);
    }
    if (!batch.empty()) {
        runtime.charge_items(size);
        if (given(bound[1])) batch.resize(std::max(size, batch.size()), *bound[1]);
        batches.push_back(Value::list(std::move(batch)));
    }
    return Value::iterator(std::move(batches));
}

Value slice_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    const auto bound = bind("slice", arguments, {"slices", "fill_with"}, 1);
    const size_t count = count_argument(*bound[0]);
    const Items items = items_of(runtime, input);
    runtime.charge_items(items.size() + count * 4);
    const size_t each = items.size() / count, longer = items.size() % count;
    Items slices;
    auto next = items.begin();
    for (size_t i = 0; i < count; ++i) {
        const auto end = next + static_cast<std::ptrdiff_t>(each + (i < longer ? 1 : 0));
        Items part(next, end);
        if (given(bound[1]) && i >= longer) part.push_back(*bound[1]);
        slices.push_back(Value::list(std::move(part)));
        next = end;
    }
    return Value::iterator(std::move(slices));
}

Value sum_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    const auto bound = bind("sum", arguments, {"attribute", "start"});
    Value sum = bound[1] ? *bound[1] : Value::integer(0);
    if (sum.is_string()) fail("sum() can't sum strings [use ''.join(seq) instead]");
    for (const Value &item : items_of(runtime, input))
        sum = binary(runtime, BinaryOp::Add, sum,
                     given(bound[0]) ? attribute_path(runtime, item, *bound[0]) : item);
    return sum;
}

Value dictsort_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    const auto bound = bind("dictsort", arguments, {"case_sensitive", "by", "reverse"});
    const std::string_view by = bound[1] ? string_argument(*bound[1]).view() : "key";
    if (by != "key" && by != "value") fail("You can only sort by either \"key\" or \"value\"");
    if (!input.is(Type::Dict))
        fail("dictsort needs a mapping, not '" + std::string(type_name(require_defined(input))) + "'");
    const KeyOf key(runtime, nullptr, bound[0]);
    Keyed items;
    for (const Dict::Entry &entry : input.dict()->entries()) {
        runtime.charge(sizeof(Sequence) + 4 * sizeof(Value));
        items.emplace_back(key(by == "key" ? entry.key : entry.value),
                           Value::tuple({entry.key, entry.value}));
    }
    sort_by_key(runtime, items, bound[2] && is_true(*bound[2]));
    return Value::list(without_keys(std::move(items)));
}

Value items_filter(Runtime &runtime, const Value &input, Arguments &arguments) {
    bind("items", arguments, {});
    if (input.is_undefined() && !input.undefined().unsafe) return Value::iterator({});
    if (!input.is(Type::Dict)) fail("Can only get item pairs from a mapping.");
    const Value view = find_method(input, "items")(runtime, input, arguments);
    return Value::iterator(view.sequence()->items);
}

constexpr NamedFilter kSequenceFilters[] = {
    {"length", length_filter},
    {"count", length_filter},
    {"list", list_filter},
    {"first", first_filter},
    {"last", last_filter},
    {"join", join_filter},
    {"items", items_filter},
    {"map", map_filter},
    {"select", select_filter<true, false>},
    {"reject", select_filter<false, false>},
    {"selectattr", select_filter<true, true>},
    {"rejectattr", select_filter<false, true>},
    {"reverse", reverse_filter},
    {"sort", sort_filter},
    {"dictsort", dictsort_filter},
    {"unique", unique_filter},
    {"groupby", groupby_filter},
    {"min", extreme_filter<false>},
    {"max", extreme_filter<true>},
    {"sum", sum_filter},
    {"batch", batch_filter},
    {"slice", slice_filter},
};

}  // namespace

std::span<const NamedFilter> sequence_filters() {
    return kSequenceFilters;
}

}  // namespace runnel::text::jinja
