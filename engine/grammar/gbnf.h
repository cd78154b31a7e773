// GBNF, llama.cpp's notation for grammars.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "engine/grammar/expression.h"

namespace runnel::grammar {

// Tokenizes a text. In a grammar, `<text>` means the one token that `text` becomes.
using Tokenize = std::function<std::vector<int32_t>(std::string_view)>;

// The language of llama.cpp's grammars, with these differences: a repetition of any size is counted exactly,
// {3,2} is an error, direct left recursion is accepted, other left recursion an error. Without `tokenize`
// only tokens by number, <[123]>, are accepted. Throws GrammarError with line and column.
Grammar parse_gbnf(std::string_view text, const Tokenize &tokenize = nullptr);

}  // namespace runnel::grammar
