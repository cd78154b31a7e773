#include "engine/grammar/schema_shape.h"

#include <algorithm>
#include <cmath>

#include "engine/grammar/formats.h"
#include "engine/grammar/regex.h"
#include "gguf/printable.h"

namespace runnel::grammar {
namespace {

// Keywords that do not affect what is valid.
constexpr std::string_view kAnnotations[] = {
    "$schema",  "$id",       "id",          "$comment",         "$defs",           "definitions",
    "$anchor",  "title",     "default",     "examples",         "description",     "deprecated",
    "readOnly", "writeOnly", "$vocabulary", "contentMediaType", "contentEncoding", "contentSchema",
    "example"};
// Keywords of the specification that are not supported.
constexpr std::string_view kRefused[] = {
    "not",          "if",       "then",        "else",        "dependentSchemas", "dependentRequired",
    "dependencies", "contains", "minContains", "maxContains", "unevaluatedItems", "$dynamicRef",
    "$recursiveRef"};
// Keywords that are read together with other ones.
constexpr std::string_view kWithOthers[] = {"properties",      "patternProperties", "additionalProperties",
                                            "items",           "prefixItems",       "additionalItems",
                                            "minimum",         "maximum",           "exclusiveMinimum",
                                            "exclusiveMaximum"};

template <size_t N>
bool is_one_of(const std::string &key, const std::string_view (&list)[N]) {
    return std::find(std::begin(list), std::end(list), key) != std::end(list);
}

std::string escaped(std::string_view key) {
    std::string result;
    for (const char c : key) result += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
    return result;
}

SchemaRef child(const SchemaRef &schema, const std::string &key) {
    return {&(*schema.json)[key], schema.path + "/" + escaped(key)};
}
SchemaRef element(const SchemaRef &list, size_t index) {
    return {&(*list.json)[index], list.path + "/" + std::to_string(index)};
}

uint32_t count_of(const SchemaRef &schema, const std::string &key) {
    const Json &value = (*schema.json)[key];
    const double number = value.is_number() ? value.get<double>() : -1;
    if (number < 0 || number != std::floor(number))
        SchemaReader::fail(schema.path, key + " must be a whole number, 0 or more");
    return number > kMaxCount ? kMaxCount : static_cast<uint32_t>(number);
}

constexpr uint32_t kLongestHostName = 253;  // RFC 1035, without the last dot

uint8_t type_of(const std::string &name, const std::string &path) {
    constexpr std::pair<std::string_view, int> kNames[] = {
        {"null", kNull},     {"boolean", kBoolean}, {"integer", kInteger}, {"number", kInteger | kFraction},
        {"string", kString}, {"array", kArray},     {"object", kObject}};
    for (const auto &[known, bits] : kNames)
        if (name == known) return static_cast<uint8_t>(bits);
    SchemaReader::fail(path, "there is no type " + gguf::printable(name));
}

void tighten_least(NumberBounds &bounds, const Bound &bound) {
    const int c = bounds.least ? compare(bound.value, bounds.least->value) : 1;
    if (c > 0 || (c == 0 && bound.exclusive)) bounds.least = bound;
}
void tighten_most(NumberBounds &bounds, const Bound &bound) {
    const int c = bounds.most ? compare(bound.value, bounds.most->value) : -1;
    if (c < 0 || (c == 0 && bound.exclusive)) bounds.most = bound;
}

std::string percent_decoded(std::string_view text) {
    std::string result;
    for (size_t i = 0; i < text.size(); ++i) {
        unsigned value = 0;
        if (text[i] == '%' && i + 2 < text.size() &&
            std::sscanf(std::string(text.substr(i + 1, 2)).c_str(), "%2x", &value) == 1) {
            result += static_cast<char>(value);
            i += 2;
        } else {
            result += text[i];
        }
    }
    return result;
}

}  // namespace

std::vector<std::string> Shape::property_names() const {
    std::vector<std::string> result;
    std::set<std::string> seen;
    const auto add = [&](const std::string &name) {
        if (seen.insert(name).second) result.push_back(name);
    };
    for (const ObjectPart &part : objects)
        for (const auto &[name, schema] : part.properties) add(name);
    for (const std::string &name : required) add(name);
    return result;
}

bool Shape::is_required(const std::string &name) const {
    return std::find(required.begin(), required.end(), name) != required.end();
}

bool Shape::is_open() const {
    bool declares = false, says = false;
    for (const ObjectPart &part : objects) {
        declares |= !part.properties.empty() || part.patterns.empty();
        says |= part.additional.has_value();
    }
    return says || !(declares || closed);
}

std::vector<std::string> Shape::name_patterns() const {
    std::vector<std::string> result;
    for (const ObjectPart &part : objects)
        for (const auto &[pattern, schema] : part.patterns)
            if (std::find(result.begin(), result.end(), pattern) == result.end()) result.push_back(pattern);
    return result;
}

Conjunction Shape::of_name(const std::string *name, const std::vector<bool> &matches) const {
    const std::vector<std::string> known = name_patterns();
    Conjunction all;
    for (const ObjectPart &part : objects) {
        bool covered = false;
        for (const auto &[own, schema] : part.properties)
            if (name && own == *name) all.push_back(schema), covered = true;
        for (const auto &[pattern, schema] : part.patterns) {
            const auto at = std::find(known.begin(), known.end(), pattern) - known.begin();
            if (matches[static_cast<size_t>(at)]) all.push_back(schema), covered = true;
        }
        if (!covered && part.additional) all.push_back(*part.additional);
    }
    return all;
}

size_t Shape::prefix_size() const {
    size_t most = 0;
    for (const ArrayPart &part : arrays) most = std::max(most, part.prefix.size());
    return most;
}

Conjunction Shape::of_element(size_t index) const {
    Conjunction all;
    for (const ArrayPart &part : arrays) {
        if (index < part.prefix.size())
            all.push_back(part.prefix[index]);
        else if (part.items)
            all.push_back(*part.items);
    }
    return all;
}

void SchemaReader::fail(const std::string &path, const std::string &message) {
    throw GrammarError("schema " + gguf::printable(path, 200) + ": " + message);
}

SchemaReader::SchemaReader(const Json &root, std::vector<std::string> *notes) : root_(root), notes_(notes) {
    index_anchors(root, "#", 0);
}

void SchemaReader::index_anchors(const Json &schema, const std::string &path, size_t depth) {
    if (depth > kMaxNesting || !schema.is_structured()) return;
    if (schema.is_object()) {
        for (const char *key : {"$id", "id", "$anchor"}) {
            const auto at = schema.find(key);
            if (at == schema.end() || !at->is_string()) continue;
            const std::string name = at->get<std::string>();
            anchors_.try_emplace(key == std::string_view("$anchor") ? "#" + name : name,
                                 SchemaRef{&schema, path});
        }
        for (const auto &[key, value] : schema.items())
            if (key != "enum" && key != "const" && value.is_structured())
                index_anchors(value, path + "/" + escaped(key), depth + 1);
    } else {
        for (size_t i = 0; i < schema.size(); ++i)
            index_anchors(schema[i], path + "/" + std::to_string(i), depth + 1);
    }
}

SchemaRef SchemaReader::target(const std::string &reference, const std::string &path) const {
    if (const auto at = anchors_.find(reference); at != anchors_.end()) return at->second;
    std::string text = reference;
    // Drop the document's own name in front of the fragment.
    if (const size_t hash = text.find('#'); hash != text.npos && hash > 0) {
        const auto base = anchors_.find(text.substr(0, hash));
        if (base != anchors_.end() && base->second.json == &root_) text = text.substr(hash);
    }
    if (const auto at = anchors_.find(text); at != anchors_.end()) return at->second;
    if (!text.starts_with('#') || (text.size() > 1 && text[1] != '/'))
        fail(path, "$ref " + gguf::printable(reference) + " points outside the schema");
    SchemaRef found{&root_, "#"};
    const std::string pointer = percent_decoded(std::string_view(text).substr(1));
    for (size_t at = 0; at < pointer.size();) {
        const size_t end = std::min(pointer.find('/', at + 1), pointer.size());
        std::string key;
        for (size_t i = at + 1; i < end; ++i) {
            if (pointer[i] == '~' && i + 1 < end)
                key += pointer[++i] == '1' ? '/' : '~';
            else
                key += pointer[i];
        }
        at = end;
        const Json &from = *found.json;
        const bool is_index =
            !key.empty() && key.size() < 9 && key.find_first_not_of("0123456789") == key.npos;
        if (from.is_object() && from.contains(key))
            found = child(found, key);
        else if (from.is_array() && is_index && std::stoul(key) < from.size())
            found = element(found, std::stoul(key));
        else
            fail(path, "$ref " + gguf::printable(reference) + " points to nothing in the schema");
    }
    return found;
}

SchemaRef SchemaReader::resolve(SchemaRef schema) {
    for (size_t steps = 0;; ++steps) {
        if (steps > kMaxNesting) fail(schema.path, "$ref refers to itself");
        if (!schema.json->is_object()) return schema;
        const auto reference = schema.json->find("$ref");
        if (reference == schema.json->end() || !reference->is_string()) return schema;
        for (const auto &[key, value] : schema.json->items())
            if (key != "$ref" && !is_one_of(key, kAnnotations)) return schema;
        schema = target(reference->get<std::string>(), schema.path);
    }
}

void SchemaReader::note(const std::string &text) {
    if (notes_ && noted_.insert(text).second) notes_->push_back(text);
}

Shape SchemaReader::shape(const Conjunction &all) {
    Shape shape;
    if (!all.empty()) shape.path = all[0].path;
    for (const SchemaRef &schema : all) {
        alone_ = all.size() == 1;
        absorb(shape, schema);
        alone_ = false;
    }
    return shape;
}

void SchemaReader::absorb(Shape &shape, const SchemaRef &given) {
    constexpr size_t kMostWork = 200'000;
    if (++work_ > kMostWork) fail(given.path, "the schema has too many combinations");
    const SchemaRef schema = resolve(given);
    if (schema.json->is_boolean()) {
        if (!schema.json->get<bool>()) shape.types = 0;
        return;
    }
    if (!schema.json->is_object()) fail(schema.path, "a schema is an object, true or false");
    if (std::find(absorbing_.begin(), absorbing_.end(), schema.json) != absorbing_.end())
        fail(schema.path, "the schema refers to itself by $ref or allOf");
    if (absorbing_.size() > kMaxNesting) fail(schema.path, "references and allOf are nested too deeply");
    absorbing_.push_back(schema.json);
    read_bounds(shape, schema);
    read_arrays(shape, schema);
    read_objects(shape, schema);
    for (const auto &[key, value] : schema.json->items()) read_keyword(shape, schema, key, value);
    absorbing_.pop_back();
}

void SchemaReader::read_bounds(Shape &shape, const SchemaRef &schema) {
    const Json &s = *schema.json;
    const auto value_of = [&](const char *key) -> std::optional<Decimal> {
        const auto at = s.find(key);
        if (at == s.end() || at->is_boolean()) return std::nullopt;
        if (!at->is_number()) fail(schema.path, std::string(key) + " must be a number");
        return Decimal::parse(at->dump());
    };
    // In draft 4, "exclusive" was a boolean next to the bound.
    const auto flag = [&](const char *key) { return s.contains(key) && s[key] == true; };
    if (const auto v = value_of("minimum")) tighten_least(shape.numbers, {*v, flag("exclusiveMinimum")});
    if (const auto v = value_of("maximum")) tighten_most(shape.numbers, {*v, flag("exclusiveMaximum")});
    if (const auto v = value_of("exclusiveMinimum")) tighten_least(shape.numbers, {*v, true});
    if (const auto v = value_of("exclusiveMaximum")) tighten_most(shape.numbers, {*v, true});
    if (const auto v = value_of("multipleOf")) {
        if (v->negative || v->is_zero()) fail(schema.path, "multipleOf must be above 0");
        shape.numbers.multiples_of.push_back(*v);
    }
}

void SchemaReader::read_arrays(Shape &shape, const SchemaRef &schema) {
    const Json &s = *schema.json;
    Shape::ArrayPart part;
    const bool old_list = s.contains("items") && s["items"].is_array();
    const char *list_key = old_list ? "items" : "prefixItems";
    if (s.contains(list_key)) {
        const SchemaRef list = child(schema, list_key);
        if (!list.json->is_array()) fail(list.path, "this must be a list of schemas");
        for (size_t i = 0; i < list.json->size(); ++i) part.prefix.push_back(element(list, i));
    }
    const char *rest = old_list ? "additionalItems" : "items";
    if (s.contains(rest)) part.items = child(schema, rest);
    if (!part.prefix.empty() || part.items) shape.arrays.push_back(std::move(part));
}

void SchemaReader::read_objects(Shape &shape, const SchemaRef &schema) {
    const Json &s = *schema.json;
    Shape::ObjectPart part;
    bool any = false;
    for (const char *key : {"properties", "patternProperties"}) {
        if (!s.contains(key)) continue;
        const SchemaRef all = child(schema, key);
        if (!all.json->is_object()) fail(all.path, "this must be an object of schemas");
        any = true;
        auto &into = key[1] == 'r' ? part.properties : part.patterns;
        for (const auto &[name, value] : all.json->items())
            into.emplace_back(name, SchemaRef{&value, all.path + "/" + escaped(name)});
    }
    if (s.contains("additionalProperties"))
        part.additional = child(schema, "additionalProperties"), any = true;
    if (any) shape.objects.push_back(std::move(part));
}

void SchemaReader::read_keyword(Shape &shape, const SchemaRef &schema, const std::string &key,
                                const Json &value) {
    const auto text = [&]() -> const std::string & {
        if (!value.is_string()) fail(schema.path, key + " must be a string");
        return value.get_ref<const std::string &>();
    };
    const auto list = [&] {
        if (!value.is_array() || value.empty()) fail(schema.path, key + " must be a list of schemas");
        std::vector<SchemaRef> parts;
        const SchemaRef all{&value, schema.path + "/" + key};
        for (size_t i = 0; i < value.size(); ++i) parts.push_back(element(all, i));
        return parts;
    };
    const auto least = [&](uint32_t &bound) { bound = std::max(bound, count_of(schema, key)); };
    const auto most = [&](uint32_t &bound) { bound = std::min(bound, count_of(schema, key)); };
    const auto add_once = [](std::vector<std::string> &to, const std::string &what) {
        if (std::find(to.begin(), to.end(), what) == to.end()) to.push_back(what);
    };
    if (is_one_of(key, kWithOthers) || key == "multipleOf") return;
    if (key == "type") {
        uint8_t types = 0;
        if (value.is_array())
            for (const Json &one : value)
                types |= type_of(one.is_string() ? one.get<std::string>() : "", schema.path);
        else
            types = type_of(text(), schema.path);
        shape.types &= types;
    } else if (key == "enum" || key == "const") {
        std::vector<Json> wanted;
        if (key == "const")
            wanted.push_back(value);
        else if (!value.is_array())
            fail(schema.path, "enum must be a list");
        else
            wanted.assign(value.begin(), value.end());
        if (shape.values)
            std::erase_if(wanted, [&](const Json &one) {
                return std::find(shape.values->begin(), shape.values->end(), one) == shape.values->end();
            });
        shape.values = std::move(wanted);
    } else if (key == "minLength") {
        least(shape.min_length);
    } else if (key == "maxLength") {
        most(shape.max_length);
    } else if (key == "pattern") {
        add_once(shape.patterns, text());
    } else if (key == "format") {
        if (format_words(text())) {
            add_once(shape.formats, text());
            if (text() == "hostname") shape.max_length = std::min(shape.max_length, kLongestHostName);
        } else {
            note("format " + gguf::printable(text()) + " is not checked");
        }
    } else if (key == "minItems") {
        least(shape.min_items);
    } else if (key == "maxItems") {
        most(shape.max_items);
    } else if (key == "uniqueItems") {
        if (value == true) fail(schema.path, "the keyword uniqueItems is not supported");
    } else if (key == "minProperties") {
        least(shape.min_properties);
    } else if (key == "maxProperties") {
        most(shape.max_properties);
    } else if (key == "required") {
        if (value.is_boolean()) return;  // draft 3
        if (!value.is_array()) fail(schema.path, "required must be a list of names");
        for (const Json &name : value) {
            if (!name.is_string()) fail(schema.path, "required must be a list of names");
            add_once(shape.required, name.get<std::string>());
        }
    } else if (key == "propertyNames") {
        shape.names.push_back({&value, schema.path + "/propertyNames"});
    } else if (key == "unevaluatedProperties") {
        // The evaluated properties are known only when all parts of the schema are combined.
        static const Json kAnything = true;
        const bool outermost = absorbing_.size() == 1 && alone_;
        if (!value.is_boolean() || (value == false && !outermost))
            fail(schema.path, "the keyword unevaluatedProperties is not supported here");
        if (value == false)
            shape.closed = true;
        else
            shape.objects.push_back({{}, {}, SchemaRef{&kAnything, schema.path}});
    } else if (key == "$ref") {
        absorb(shape, target(text(), schema.path));
    } else if (key == "allOf") {
        for (const SchemaRef &part : list()) absorb(shape, part);
    } else if (key == "anyOf" || key == "oneOf") {
        shape.groups.push_back({list(), key == "oneOf", schema.path});
    } else if (is_one_of(key, kRefused)) {
        fail(schema.path, "the keyword " + key + " is not supported");
    } else if (!is_one_of(key, kAnnotations)) {
        note("the keyword " + gguf::printable(key) + " is not one of JSON Schema: ignored");
    }
}

const Dfa &SchemaReader::pattern_dfa(const std::string &pattern) {
    const auto at = dfas_.find("p" + pattern);
    if (at != dfas_.end()) return at->second;
    return dfas_.emplace("p" + pattern, Dfa::of(search_match(parse_regex(pattern)))).first->second;
}

const Dfa &SchemaReader::format_dfa(const std::string &format) {
    const auto at = dfas_.find("f" + format);
    if (at != dfas_.end()) return at->second;
    return dfas_.emplace("f" + format, Dfa::of(format_words(format))).first->second;
}

}  // namespace runnel::grammar
