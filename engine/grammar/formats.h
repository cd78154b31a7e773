// The formats of JSON Schema that are enforced.
#pragma once

#include <string_view>

#include "engine/grammar/expression.h"

namespace runnel::grammar {

// Null for an unknown format, which by the specification is an annotation.
Expr format_words(std::string_view name);

}  // namespace runnel::grammar
