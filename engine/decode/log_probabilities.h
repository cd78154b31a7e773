// Log-probabilities of tokens in the model's own distribution: log softmax of the unchanged logits, before
// biases, penalties, masks, filters and temperature. Sums in double.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/text/token.h"

namespace runnel::decode {

struct TokenLogProbability {
    text::TokenId id;
    double log_probability;
    int32_t rank;  // 1: no other token is more probable; among equals, the lower id ranks first
};

struct TokenLogProbabilities {
    TokenLogProbability token;             // the sampled token
    std::vector<TokenLogProbability> top;  // the most probable tokens, which may include it
};

// For token `id` and for the `top` most probable tokens. Precondition: `id` is the index of a logit.
TokenLogProbabilities log_probabilities(std::span<const float> logits, text::TokenId id, int32_t top);

}  // namespace runnel::decode
