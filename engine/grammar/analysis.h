// Checks and simplifies a grammar before it is compiled.
#pragma once

#include <vector>

#include "engine/grammar/expression.h"

namespace runnel::grammar {

// Rewrites direct left recursion (`a ::= a x | b` is `b x*`), removes alternatives that can never be finished
// and rules that are not used. Throws GrammarError for rules that are not defined, for other left recursion,
// and when no text matches. Returns which rules may match the empty text.
std::vector<bool> prepare(Grammar &grammar);

bool nullable(const Expression &e, const std::vector<bool> &nullable_rules);

}  // namespace runnel::grammar
