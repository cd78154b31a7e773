// JSON as expressions: whitespace, strings, values of any kind.
#pragma once

#include <optional>
#include <string_view>

#include "engine/grammar/expression.h"
#include "engine/text/json.h"

namespace runnel::grammar {

using text::Json;

// Between the tokens of a JSON text, and behind it. Bounded: nothing, one blank, or one or two newlines with
// up to 20 blanks or tabs.
enum class Whitespace { Bounded, Compact, Any };

Expr whitespace(Whitespace policy);

// A string of `characters` (Json spelling) with its quotation marks.
Expr quoted_string(const Expr &characters);
// One certain string: printable ASCII as it is, other characters in any spelling.
Expr exact_string(std::string_view text);
// `value` with its keys in their order.
Expr exact_value(const Json &value, const Expr &space);

// {...} and [...] with the space inside. `members`, `elements`: each followed by `space`, or nothing.
Expr braces(const Expr &inside, const Expr &space);
Expr brackets(const Expr &inside, const Expr &space);
Expr member(const Expr &key, const Expr &value, const Expr &space);
Expr comma(const Expr &space);

// The rule of any value; `object_rule`, if it is wanted, becomes that of any object.
uint32_t add_any_value(Grammar &grammar, const Expr &space, uint32_t *object_rule = nullptr);

// Parses text from outside. Throws GrammarError with line and column, also for what is nested too deeply.
Json parse_json_text(std::string_view text, const char *what);

// Any JSON value, or any object.
Grammar json_grammar(Whitespace policy = Whitespace::Bounded, bool object = false);

}  // namespace runnel::grammar
