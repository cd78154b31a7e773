// Limits of gated SiLUs by layer, which keep the hidden values of some models in range (swiglu_clamp_exp: of the chosen
// experts; swiglu_clamp_shexp: of shared experts and dense layers).
#pragma once

#include <vector>

#include "engine/model/builder.h"

namespace runnel::model {

struct SiluLimits {
    std::vector<float> by_layer = {};  // 0: none; empty: none in any layer
    // Whether the limit cuts the gate before SiLU (SiLU(min(gate, limit))) or after it.
    bool before = false;

    // Gives a step with a gated SiLU, an Activation or Experts, the layer's limit.
    void apply(auto &step, int32_t layer) const {
        using Kind = kernels::Activation::Kind;
        const float limit = by_layer.empty() ? 0 : by_layer.at(static_cast<size_t>(layer));
        if (limit == 0 || step.act != Kind::Silu) return;
        step.act = before ? Kind::LimitThenSilu : Kind::SiluThenLimit;
        step.parameters.positive = limit;
    }
};

// The limits of a key with one number for all layers, or one for each. Numbers up to 1e-6 mean none. Throws ModelError
// if a number is negative or not finite, or if their count is not that of the layers.
SiluLimits silu_limits(const Builder &builder, const char *key, bool before = false);

}  // namespace runnel::model
