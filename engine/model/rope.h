// RoPE frequencies from metadata: plain, linear, YaRN (Peng et al. 2023) and per-pair factors
// (`rope_freqs.weight`, as Llama 3.1 uses).
#pragma once

#include <span>

#include "kernels/program.h"

namespace runnel::model {

struct RopeScaling {
    enum class Kind { None, Linear, Yarn };
    Kind kind = Kind::None;
    double factor = 1;            // s: the context was extended s times
    double original_context = 0;  // YaRN: training context before scaling
    double beta_fast = 32, beta_slow = 1;
    double extrapolation = 1;     // YaRN's ext_factor: 0 turns the ramp off
    double attention_factor = 1;  // multiplies the magnitude
    double log_multiplier = 0;    // mscale_all_dim; 0: absent
};

// Frequencies of `dimensions` rotated dimensions (even). `divisors`: [dimensions / 2], each divides the
// frequency of its pair; may be empty.
kernels::RopeTable make_rope(kernels::RopeTable::Pairs pairs, int32_t dimensions, double base,
                             const RopeScaling &scaling, std::span<const float> divisors);

}  // namespace runnel::model
