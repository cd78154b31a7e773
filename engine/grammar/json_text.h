// JSON as expressions: whitespace, strings, values of any kind.
#pragma once

#include <optional>
#include <string_view>

#include "engine/grammar/expression.h"
#include "engine/text/json.h"

namespace runnel::grammar {

using text::Json;

// White space between the tokens of a JSON text, and after it. Bounded: nothing, one blank, or one or two
// newlines with up to 20 blanks or tabs.
enum class Whitespace { Bounded, Compact, Any };

Expr whitespace(Whitespace policy);

// A string of `characters` (Json spelling) with its quotation marks.
Expr quoted_string(const Expr &characters);
// Exactly this string: printable ASCII as it is, other characters in any spelling.
Expr exact_string(std::string_view text);
// `value` with its keys in their order.
Expr exact_value(const Json &value, const Expr &space);

// {...} and [...], with `space` after the opening bracket. `inside` is empty or ends with `space`.
Expr braces(const Expr &inside, const Expr &space);
Expr brackets(const Expr &inside, const Expr &space);
Expr member(const Expr &key, const Expr &value, const Expr &space);
Expr comma(const Expr &space);

// Adds the rule of any value and returns it. *object_rule, if not null, becomes the rule of any object.
uint32_t add_any_value(Grammar &grammar, const Expr &space, uint32_t *object_rule = nullptr);

// Parses untrusted text. Throws GrammarError with line and column, also if it is nested too deeply.
Json parse_json_text(std::string_view text, const char *what);

// Any JSON value; with `object`, any object.
Grammar json_grammar(Whitespace policy = Whitespace::Bounded, bool object = false);

}  // namespace runnel::grammar
