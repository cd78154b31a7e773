// Checks whether a value is valid for a schema, and whether two schemas exclude each other.
#include <algorithm>

#include "engine/grammar/schema_shape.h"

namespace runnel::grammar {
namespace {

uint8_t type_bit(const Json &value) {
    switch (value.type()) {
        case Json::value_t::null:
            return kNull;
        case Json::value_t::boolean:
            return kBoolean;
        case Json::value_t::string:
            return kString;
        case Json::value_t::array:
            return kArray;
        case Json::value_t::object:
            return kObject;
        default:
            return Decimal::parse(value.dump()).fraction.empty() ? kInteger : kFraction;
    }
}

size_t characters(const std::string &text) {
    return static_cast<size_t>(std::count_if(
        text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; }));
}

}  // namespace

bool SchemaReader::valid(const Json &value, const Conjunction &schemas) {
    return valid(value, shape(schemas));
}

bool SchemaReader::valid(const Json &value, const Shape &s) {
    const uint8_t type = type_bit(value);
    if (!(s.types & type)) return false;
    if (s.values && std::find(s.values->begin(), s.values->end(), value) == s.values->end()) return false;
    for (const Shape::Group &group : s.groups) {
        const auto matching = std::count_if(group.branches.begin(), group.branches.end(),
                                            [&](const SchemaRef &b) { return valid(value, Conjunction{b}); });
        if (matching == 0 || (group.exclusive && matching > 1)) return false;
    }
    if (type & (kInteger | kFraction)) return within(Decimal::parse(value.dump()), s.numbers, false);
    if (type == kString) {
        const auto &text = value.get_ref<const std::string &>();
        const size_t length = characters(text);
        if (length < s.min_length || length > s.max_length) return false;
        return std::all_of(s.patterns.begin(), s.patterns.end(),
                           [&](const std::string &p) { return pattern_dfa(p).matches(text); }) &&
               std::all_of(s.formats.begin(), s.formats.end(),
                           [&](const std::string &f) { return format_dfa(f).matches(text); });
    }
    if (type == kArray) {
        if (value.size() < s.min_items || value.size() > s.max_items) return false;
        for (size_t i = 0; i < value.size(); ++i)
            if (!valid(value[i], s.of_element(i))) return false;
    }
    if (type == kObject) {
        if (value.size() < s.min_properties || value.size() > s.max_properties) return false;
        for (const std::string &name : s.required)
            if (!value.contains(name)) return false;
        const std::vector<std::string> patterns = s.name_patterns(), declared = s.property_names();
        for (const auto &[name, part] : value.items()) {
            std::vector<bool> matches;
            for (const std::string &pattern : patterns) matches.push_back(pattern_dfa(pattern).matches(name));
            if (!valid(part, s.of_name(&name, matches))) return false;
            if (!s.names.empty() && !valid(Json(name), s.names)) return false;
            if (s.closed && !s.is_open() &&
                std::find(declared.begin(), declared.end(), name) == declared.end() &&
                std::find(matches.begin(), matches.end(), true) == matches.end())
                return false;
        }
    }
    return true;
}

Dfa SchemaReader::strings_of(const Shape &s) {
    Dfa all = Dfa::all();
    for (const std::string &pattern : s.patterns) all = all & pattern_dfa(pattern);
    for (const std::string &format : s.formats) all = all & format_dfa(format);
    return all;
}

bool SchemaReader::disjoint(const Shape &a, const Shape &b, int depth) {
    constexpr int kDeepest = 6;
    if (depth > kDeepest) return false;
    // (Plain variables: clang before 16 captures no structured bindings.)
    for (const bool swapped : {false, true}) {
        const Shape *const one = swapped ? &b : &a, *const other = swapped ? &a : &b;
        if (one->values) {
            const bool common = std::any_of(one->values->begin(), one->values->end(), [&](const Json &value) {
                return valid(value, *one) && valid(value, *other);
            });
            return !common;
        }
    }
    // A schema with anyOf or oneOf is disjoint from another if each of its branches is.
    for (const bool swapped : {false, true}) {
        const Shape *const one = swapped ? &b : &a, *const other = swapped ? &a : &b;
        if (one->groups.empty()) continue;
        Shape rest = *one;
        const Shape::Group group = rest.groups.back();
        rest.groups.pop_back();
        return std::all_of(group.branches.begin(), group.branches.end(), [&](const SchemaRef &branch) {
            Shape chosen = rest;
            absorb(chosen, branch);
            return swapped ? disjoint(*other, chosen, depth + 1) : disjoint(chosen, *other, depth + 1);
        });
    }
    const uint8_t common = a.types & b.types;
    if (common & (kNull | kBoolean)) return false;
    if (common & (kInteger | kFraction)) {
        const auto above = [](const Shape &low, const Shape &high) {
            if (!low.numbers.most || !high.numbers.least) return false;
            const int c = compare(low.numbers.most->value, high.numbers.least->value);
            return c < 0 || (c == 0 && (low.numbers.most->exclusive || high.numbers.least->exclusive));
        };
        if (!above(a, b) && !above(b, a)) return false;
    }
    if (common & kString) {
        const bool lengths = a.max_length < b.min_length || b.max_length < a.min_length;
        if (!lengths && !(strings_of(a) & strings_of(b)).none()) return false;
    }
    if ((common & kArray) && a.max_items >= b.min_items && b.max_items >= a.min_items) {
        bool differ = false;
        const size_t both = std::max(a.min_items, b.min_items);
        for (size_t i = 0; i < std::min<size_t>(both, 64) && !differ; ++i)
            differ = disjoint(shape(a.of_element(i)), shape(b.of_element(i)), depth + 1);
        if (!differ) return false;
    }
    return !(common & kObject) || (disjoint_objects(a, b, depth) && disjoint_objects(b, a, depth));
}

// Whether every object of `a`'s grammar is invalid for `b`.
bool SchemaReader::disjoint_objects(const Shape &a, const Shape &b, int depth) {
    const auto conjunction = [&](const Shape &s, const std::string &name) {
        std::vector<bool> matches;
        for (const std::string &pattern : s.name_patterns())
            matches.push_back(pattern_dfa(pattern).matches(name));
        return s.of_name(&name, matches);
    };
    for (const std::string &name : a.required)
        if (disjoint(shape(conjunction(a, name)), shape(conjunction(b, name)), depth + 1)) return true;
    const std::vector<std::string> written = a.property_names();
    return std::any_of(b.required.begin(), b.required.end(), [&](const std::string &name) {
        if (std::find(written.begin(), written.end(), name) != written.end() || a.is_open()) return false;
        const std::vector<std::string> patterns = a.name_patterns();
        return std::none_of(patterns.begin(), patterns.end(),
                            [&](const std::string &pattern) { return pattern_dfa(pattern).matches(name); });
    });
}

}  // namespace runnel::grammar
