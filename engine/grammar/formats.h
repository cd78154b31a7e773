// The formats of JSON Schema that are enforced.
#pragma once

#include <string_view>

#include "engine/grammar/expression.h"

namespace runnel::grammar {

// Null for a format that is not known: by the specification it is an annotation then.
Expr format_words(std::string_view name);

}  // namespace runnel::grammar
