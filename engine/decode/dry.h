// DRY ("don't repeat yourself") as llama.cpp computes it: penalties for tokens that would continue a repetition.
//
// Let w be the last `last_n` tokens of the history. For a token x, L is the length of the longest suffix of w
// that also occurs earlier in w, followed by x. A suffix stops at the newest breaker in w. If L >= the
// allowed length and x is not itself a breaker, x's logit is lowered by multiplier * base^(L - allowed
// length); the exponent is at most 88.72 / ln base.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/decode/sampling_options.h"
#include "engine/text/tokenizer.h"

namespace runnel::decode {

// Breakers, the texts that end a repetition: first token -> tails. A token that contains a breaker has an
// empty tail; a token that ends with the beginning of a breaker has a tail of tokens for the rest of it.
using DryBreakers = std::unordered_map<text::TokenId, std::vector<std::vector<text::TokenId>>>;

// Takes about 0.1 s with a vocabulary of 262,144 tokens. Only the first 40 bytes of a breaker count.
DryBreakers make_dry_breakers(const text::Tokenizer &tokenizer, std::span<const std::string> breakers);

// The amount to subtract from the logit of each penalized token. Takes time linear in the window. `breakers` may
// be null.
std::unordered_map<text::TokenId, float> dry_penalties(const SamplingOptions &options,
                                                       const DryBreakers *breakers,
                                                       std::span<const text::TokenId> history);

}  // namespace runnel::decode
