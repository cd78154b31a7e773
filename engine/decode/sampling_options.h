// How the next token is drawn. Formulas in sampler.h, names, ranges and help in sampling_settings.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/token.h"

namespace runnel::decode {

enum class SamplerKind { Penalties, Dry, TopNSigma, TopK, Typical, TopP, MinP, Xtc, Temperature };
using SamplerOrder = std::vector<SamplerKind>;  // each at most once

// llama.cpp's default: the enumerators in their order.
SamplerOrder default_samplers();
// llama.cpp's names with ';' between them ("top_k;temperature") or its letters ("kt"). adaptive_p (a) may be
// named; it is the last step in any order. Throws std::invalid_argument, whose what() says what is allowed.
SamplerOrder parse_samplers(std::string_view text);
std::string samplers_text(const SamplerOrder &order);  // names

struct SamplingOptions {
    float temperature = 0.8f;
    int32_t top_k = 40;           // <= 0: off
    float top_p = 0.95f;          // >= 1: off
    float min_p = 0.05f;          // <= 0: off
    float typical = 1.0f;         // >= 1: off
    float repeat_penalty = 1.0f;  // 1: off; > 0
    float presence_penalty = 0.0f, frequency_penalty = 0.0f;
    int32_t repeat_last_n = 64;                               // -1: the whole history
    std::vector<std::pair<text::TokenId, float>> logit_bias;  // -infinity forbids a token
    uint64_t seed = 0;

    float top_n_sigma = -1;                           // <= 0: off
    float xtc_probability = 0, xtc_threshold = 0.1f;  // off: probability 0, or threshold above 0.5
    float dynatemp_range = 0, dynatemp_exponent = 1;  // range 0: the temperature is constant
    float dry_multiplier = 0, dry_base = 1.75f;       // multiplier 0 or base < 1: off
    int32_t dry_allowed_length = 2, dry_last_n = 64;  // -1: the whole history
    std::vector<std::string> dry_breakers = {"\n", ":", "\"", "*"};
    int32_t mirostat = 0;  // version 1 or 2; 0: off
    float mirostat_tau = 5, mirostat_eta = 0.1f;
    float adaptive_target = -1, adaptive_decay = 0.9f;  // target < 0: off
    SamplerOrder samplers = default_samplers();
};

}  // namespace runnel::decode
