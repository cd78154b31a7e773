// Regular expressions of ECMA-262 (with the u flag), as JSON Schema uses them.
//
// Supported: alternatives, groups of all kinds, greedy and lazy quantifiers, classes, \d \w \s, \b, anchors,
// escapes, \p{..} of general categories. Look-around and back-references are refused by name. From Python:
// (?P<name>..), \A, \Z.
#pragma once

#include <string_view>

#include "engine/grammar/expression.h"

namespace runnel::grammar {

// The expression as written, which may contain Assert. Throws GrammarError with line and column.
Expr parse_regex(std::string_view pattern);

// The texts that match as a whole; the texts that contain a match. Neither result has Assert.
Expr whole_match(const Expr &regex);
Expr search_match(const Expr &regex);

}  // namespace runnel::grammar
