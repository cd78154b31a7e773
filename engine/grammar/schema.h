// JSON Schema (drafts 4 to 2020-12) to a grammar.
//
// All keywords of a schema apply, with those of its $ref and its allOf. Enforced: type, enum, const;
// properties, required, additionalProperties, patternProperties, propertyNames, minProperties, maxProperties;
// items, prefixItems, additionalItems, minItems, maxItems; minLength, maxLength, pattern, format; minimum,
// maximum, exclusive ones, multipleOf; $ref, $defs, $anchor, anyOf, allOf, oneOf if no two branches can both
// match. Other keywords of the specification are refused by name. Unknown keywords are ignored with a note.
//
// Every text of the grammar matches the schema. Not every matching text is in the grammar:
// - the declared properties come in the order of their declaration (unless `any_order`), in plain spelling,
//   then other required ones, then additional ones, whose names may repeat;
// - an object with `properties` has no others unless additionalProperties, patternProperties or
//   unevaluatedProperties says so;
// - whitespace is as the policy says; numbers with bounds have no exponent, integers may end in ".0".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/grammar/json_text.h"

namespace runnel::grammar {

struct SchemaOptions {
    Whitespace whitespace = Whitespace::Bounded;
    bool any_order = false;

    bool operator==(const SchemaOptions &) const = default;
};

// Throws GrammarError with the place in the schema as a JSON pointer. `notes`, if not null: what was ignored.
Grammar schema_grammar(const Json &schema, const SchemaOptions &options = {},
                       std::vector<std::string> *notes = nullptr);
Grammar schema_grammar(std::string_view text, const SchemaOptions &options = {},
                       std::vector<std::string> *notes = nullptr);

}  // namespace runnel::grammar
