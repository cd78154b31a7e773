// The feed-forward half of mixture-of-experts families.
//
// Layers from `leading_dense_block_count` on have experts if their number, counted from 1, is a multiple of
// `interleave_moe_layer_step`. The tensors of the file decide the rest: ffn_gate_up_exps (gate rows first) or
// ffn_gate_exps and ffn_up_exps; biases of router and experts; exp_probs_b (a bias for the choice only);
// ffn_*_exps.scale, a factor for the products of each expert's matrix; ffn_*_shexp (or ffn_up_shexp with the gate's rows
// first), an expert for all tokens, whose output is added unscaled or, with ffn_gate_inp_shexp, times the sigmoid
// of its own logit.
#pragma once

#include <optional>

#include "engine/model/decoder.h"

namespace runnel::model {

struct ExpertTraits {
    using Score = kernels::Routing::Score;
    Score score =
        Score::Softmax;  // the file's `expert_gating_func` takes precedence over all but SparseMixer
    // Whether the weights of the chosen experts are divided by their sum; nullopt: the file's
    // `expert_weights_norm` (absent: no).
    std::optional<bool> normalize = std::nullopt;
    kernels::Activation::Kind act = kernels::Activation::Kind::Silu;
    SiluLimits limits = {}, shared_limits = {};
    bool gated = true;  // false: an expert is Wdown act(Wup x)
    bool weights_on_input = false;
    bool by_presence = false;  // layers with a router tensor have experts; keys are ignored
    // The input of the router, with a factor applied; kNoSlot: the experts' input.
    kernels::Slot router_in = kernels::kNoSlot;
    double router_scale = 1;
    kernels::Slot chosen = kernels::kNoSlot;  // kernels::Experts::chosen
};

// Whether the file's model has experts.
bool has_experts(const Builder &builder);

// Replaces the feed-forward half of the layers that have experts.
void with_experts(DecoderTraits &traits, const ExpertTraits &experts);

void emit_experts(Builder &builder, const ExpertTraits &traits, int32_t layer, const SubLayer &sublayer);

}  // namespace runnel::model
