// Mixture-of-experts families with few differences from others.
#include "engine/model/experts.h"
#include "engine/model/families.h"

namespace runnel::model {

using HeadNorm = DecoderTraits::HeadNorm;
using Pairs = kernels::RopeTable::Pairs;
using Score = ExpertTraits::Score;

// dots1: dots.llm1.
void emit_dots1(Builder &b) {
    DecoderTraits traits{.pairs = Pairs::Halves, .head_norm = HeadNorm::PerHead};
    with_experts(traits, {});
    emit_decoder(b, traits);
}

// bailingmoe2: Ling 2 and Ring 2. hy_v3: Hy3, whose layers with experts are known by their tensors only.
void emit_bailingmoe2(Builder &b) {
    DecoderTraits traits{.pairs = Pairs::Halves, .head_norm = HeadNorm::PerHead};
    with_experts(traits, {.score = Score::Sigmoid, .by_presence = true});
    emit_decoder(b, traits);
}

// exaone-moe: K-EXAONE. Three window layers with RoPE, then a full one without.
void emit_exaone_moe(Builder &b) {
    DecoderTraits traits{.pairs = Pairs::Halves,
                         .head_norm = HeadNorm::PerHead,
                         .full = full_layers(b, 4),
                         .window = sliding_window(b, 128),
                         .rope_on_full = false};
    with_experts(traits, {.score = Score::Sigmoid});
    emit_decoder(b, traits);
}

// granite_swa: Granite 4 with windows and attention sinks, dense or with experts. attention.rope_pattern
// selects the layers with RoPE.
void emit_granite_swa(Builder &b) {
    const Metadata &m = b.metadata();
    DecoderTraits traits = granite_scales(b);
    traits.pairs = Pairs::Adjacent;
    traits.window = m.required_integer("attention.sliding_window", 1, INT32_MAX);
    traits.full = full_layers(b, 0);
    if (const auto rotated = m.booleans("attention.rope_pattern")) {
        if (rotated->size() != traits.full.size())
            m.fail("attention.rope_pattern", "does not have block_count entries");
        traits.rotated = *rotated;
    }
    if (has_experts(b)) with_experts(traits, {.normalize = true});
    emit_decoder(b, traits);
}

// cohere2moe: North Mini Code. Both halves of a layer share one norm; one full layer, then three window layers.
// Window layers and the leading dense layers have RoPE. Routed and shared experts are each weighted by 1/2.
void emit_cohere2moe(Builder &b) {
    const Metadata &m = b.metadata();
    DecoderTraits traits{.pairs = Pairs::Adjacent,
                         .block = DecoderTraits::Block::Parallel,
                         .ffn_norm = "",
                         .full = full_layers(b, 4, true),
                         .window = m.required_integer("attention.sliding_window", 1, INT32_MAX),
                         .logit_scale = m.required_real("logit_scale", 0)};
    if (!m.real("attention.layer_norm_rms_epsilon")) traits.norm = kernels::Norm::Kind::Layer;
    const int64_t dense = m.integer("leading_dense_block_count", 0, INT32_MAX).value_or(0);
    for (size_t i = 0; i < traits.full.size(); ++i)
        traits.rotated.push_back(!traits.full[i] || static_cast<int64_t>(i) < dense);
    with_experts(traits, {.score = Score::Sigmoid});
    const auto whole = traits.feed_forward;
    traits.feed_forward = [whole](Builder &builder, int32_t layer, const Branch &branch) {
        Branch half = branch;
        if (builder.has("blk." + std::to_string(layer) + ".ffn_up_shexp.weight")) half.scale *= 0.5f;
        whole(builder, layer, half);
    };
    emit_decoder(b, traits);
}

}  // namespace runnel::model
