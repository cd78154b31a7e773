// DRY ("don't repeat yourself") as llama.cpp computes it: penalties for tokens that would continue a repetition.
//
// Let w be the last `last_n` tokens of the history. For a token x, L is the length of the longest suffix of w
// that also occurs earlier in w with x behind it. No suffix reaches over the newest breaker in w. If L >= the
// allowed length, and x alone is no breaker, its logit is lowered by multiplier * base^(L - allowed length);
// the exponent is at most 88.72 / ln base.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/decode/sampling_options.h"
#include "engine/text/tokenizer.h"

namespace runnel::decode {

// Texts that end a repetition, as tokens: a text is spelled by a token that contains it (an empty tail), or by
// a token that ends with its beginning and a tail of tokens for the rest.
using DryBreakers = std::unordered_map<text::TokenId, std::vector<std::vector<text::TokenId>>>;

// Takes about 0.1 s with a vocabulary of 262,144 tokens. Of a breaker, the first 40 bytes count.
DryBreakers make_dry_breakers(const text::Tokenizer &tokenizer, std::span<const std::string> breakers);

// What to subtract from the logits of these tokens. Linear in the window. `breakers` may be null: none.
std::unordered_map<text::TokenId, float> dry_penalties(const SamplingOptions &options,
                                                       const DryBreakers *breakers,
                                                       std::span<const text::TokenId> history);

}  // namespace runnel::decode
