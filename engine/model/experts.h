// The feed-forward half of mixture-of-experts families.
//
// Which layers have experts: from `leading_dense_block_count` on, every `interleave_moe_layer_step`-th. What
// a file has decides the rest: ffn_gate_up_exps (gate rows first) or ffn_gate_exps and ffn_up_exps; biases of
// router and experts; exp_probs_b (a bias for the choice alone); ffn_down_exps.scale, a factor for the output
// of each expert; ffn_*_shexp, an expert for all tokens, whose output counts in full or, with
// ffn_gate_inp_shexp, times the sigmoid of a logit of its own.
#pragma once

#include <optional>

#include "engine/model/decoder.h"

namespace runnel::model {

struct ExpertTraits {
    using Score = kernels::Routing::Score;
    Score score = Score::Softmax;  // `expert_gating_func` in a file is stronger
    // Whether the weights of the chosen experts are divided by their sum; none: as `expert_weights_norm` says
    // (absent: no).
    std::optional<bool> normalize = std::nullopt;
    kernels::Gate::Act act = kernels::Gate::Act::Silu;
    bool gated = true;  // false: an expert is Wdown act(Wup x)
    bool weights_on_input = false;
    // What the router reads, times a factor; kNoSlot: what the experts read.
    kernels::Slot router_in = kernels::kNoSlot;
    double router_scale = 1;
};

// Whether the file is of a model with experts at all.
bool has_experts(const Builder &builder);

// Replaces the feed-forward half in the layers that have experts.
void with_experts(DecoderTraits &traits, const ExpertTraits &experts);

void emit_experts(Builder &builder, const ExpertTraits &traits, int32_t layer, const Branch &branch);

}  // namespace runnel::model
