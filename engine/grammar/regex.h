// Regular expressions of ECMA-262 (with the u flag), as JSON Schema has them.
//
// Supported: alternatives, groups of all kinds, greedy and lazy quantifiers, classes, \d \w \s, \b, anchors,
// escapes, \p{..} of general categories. Look-around and back-references are refused by name. From Python:
// (?P<name>..), \A, \Z.
#pragma once

#include <string_view>

#include "engine/grammar/expression.h"

namespace runnel::grammar {

// As it is written; may hold Assert. Throws GrammarError with line and column.
Expr parse_regex(std::string_view pattern);

// The texts that match as a whole, and those that contain a match. The results have no Assert.
Expr whole_match(const Expr &regex);
Expr search_match(const Expr &regex);

}  // namespace runnel::grammar
