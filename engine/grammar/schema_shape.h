// The combined meaning of all keywords at one place of a schema.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/grammar/dfa.h"
#include "engine/grammar/json_text.h"
#include "engine/grammar/numbers.h"

namespace runnel::grammar {

// A part of the schema, and where it is ("#/properties/name"). The document outlives it.
struct SchemaRef {
    const Json *json;
    std::string path;
};

// Schemas that must all hold. Empty: every value is valid.
using Conjunction = std::vector<SchemaRef>;

enum Type : uint8_t {
    kNull = 1,
    kBoolean = 2,
    kInteger = 4,
    kFraction = 8,  // numbers that are not integers
    kString = 16,
    kArray = 32,
    kObject = 64,
    kAnyType = 127,
};

struct Shape {
    // One schema's keywords about objects: its "additional" properties are those that it does not declare.
    struct ObjectPart {
        std::vector<std::pair<std::string, SchemaRef>> properties, patterns;
        std::optional<SchemaRef> additional;
    };
    struct ArrayPart {
        std::vector<SchemaRef> prefix;
        std::optional<SchemaRef> items;  // after the prefix
    };
    struct Group {  // anyOf, oneOf
        std::vector<SchemaRef> branches;
        bool exclusive;
        std::string path;
    };

    uint8_t types = kAnyType;
    std::optional<std::vector<Json>> values;  // enum, const
    NumberBounds numbers;
    uint32_t min_length = 0, max_length = kUnbounded;
    std::vector<std::string> patterns;  // each once
    std::vector<std::string> formats;
    std::vector<ArrayPart> arrays;
    uint32_t min_items = 0, max_items = kUnbounded;
    std::vector<ObjectPart> objects;
    std::vector<std::string> required;
    uint32_t min_properties = 0, max_properties = kUnbounded;
    std::vector<SchemaRef> names;  // propertyNames
    std::vector<Group> groups;
    bool closed = false;  // unevaluatedProperties: false
    std::string path;

    // Names of the declared properties, in order, then of those that are only required.
    std::vector<std::string> property_names() const;
    bool is_required(const std::string &name) const;
    // Whether objects can have names that are not declared and match no pattern.
    bool is_open() const;
    // The schemas of the value of a name (null: undeclared). matches: which name_patterns() the name matches.
    Conjunction of_name(const std::string *name, const std::vector<bool> &matches) const;
    std::vector<std::string> name_patterns() const;  // each once
    Conjunction of_element(size_t index) const;
    size_t prefix_size() const;
};

// Reads keywords; keeps the whole document to resolve references.
class SchemaReader {
  public:
    SchemaReader(const Json &root, std::vector<std::string> *notes);

    // The combined keywords of all these schemas. Throws GrammarError.
    Shape shape(const Conjunction &all);
    // Adds `schema` to `shape`.
    void absorb(Shape &shape, const SchemaRef &schema);
    // Follows references that have no other keywords next to them.
    SchemaRef resolve(SchemaRef schema);

    // valid(): whether a value is valid. disjoint(): whether no value of `a`'s grammar is valid for `b`;
    // false also if that is not known.
    bool valid(const Json &value, const Conjunction &schemas);
    bool valid(const Json &value, const Shape &shape);
    bool disjoint(const Shape &a, const Shape &b, int depth = 0);

    // The words of a pattern (as a search) or a format; compiled once.
    const Dfa &pattern_dfa(const std::string &pattern);
    const Dfa &format_dfa(const std::string &format);

    [[noreturn]] static void fail(const std::string &path, const std::string &message);

  private:
    struct Entry;
    SchemaRef target(const std::string &reference, const std::string &path) const;
    void index_anchors(const Json &schema, const std::string &path, size_t depth);
    void read_keyword(Shape &shape, const SchemaRef &schema, const std::string &key, const Json &value);
    void read_arrays(Shape &shape, const SchemaRef &schema);
    void read_objects(Shape &shape, const SchemaRef &schema);
    void read_bounds(Shape &shape, const SchemaRef &schema);
    void note(const std::string &text);
    bool disjoint_objects(const Shape &a, const Shape &b, int depth);
    Dfa strings_of(const Shape &shape);

    const Json &root_;
    std::vector<std::string> *notes_;
    std::map<std::string, SchemaRef> anchors_;  // $anchor and $id
    std::set<std::string> noted_;
    std::vector<const Json *> absorbing_;
    std::map<std::string, Dfa> dfas_;
    size_t work_ = 0;
    bool alone_ = false;  // the schema being read is the only one at its place
};

}  // namespace runnel::grammar
