// Families with gates on the attention output, before the output matrix.
#include <cmath>

#include "engine/model/experts.h"
#include "engine/model/families.h"

namespace runnel::model {

// afmoe: Arcee Trinity. Norms before and after both halves; three of four layers have windows; the first layers
// are dense. Every fourth layer has no RoPE, even in models without windows.
void emit_afmoe(Builder &b) {
    const Metadata &m = b.metadata();
    DecoderTraits traits{.pairs = kernels::RopeTable::Pairs::Halves,
                         .block = DecoderTraits::Block::Sandwich,
                         .head_norm = DecoderTraits::HeadNorm::PerHead,
                         .window = sliding_window(b, 0),
                         .attention_gates = DecoderTraits::Gates::PerValue,
                         .embedding_scale = std::sqrt(double(b.hyper().embedding_length))};
    if (traits.window > 0) traits.full = full_layers(b, 4);
    if (const auto base = m.real("rope.freq_base_swa"); base && traits.window > 0)
        traits.window_rope_base = *base;
    for (int32_t i = 0; i < b.hyper().block_count; ++i) traits.rotated.push_back((i + 1) % 4 != 0);
    with_experts(traits, {.score = ExpertTraits::Score::Sigmoid});
    emit_decoder(b, traits);
}

// muse-glimmer: Muse-Glimmer 30B. A norm of the embeddings without weights; norms before and after both halves,
// the latter with their own epsilon; three window layers with RoPE, then a full one without.
void emit_muse_glimmer(Builder &b) {
    const Metadata &m = b.metadata();
    DecoderTraits traits{.pairs = kernels::RopeTable::Pairs::Adjacent,
                         .block = DecoderTraits::Block::Sandwich,
                         .post_norm_epsilon = 1e-8,
                         .head_norm = DecoderTraits::HeadNorm::PerHead,
                         .full = full_layers(b, 4),
                         .window = m.required_integer("attention.sliding_window", 1, INT32_MAX),
                         .rope_on_full = false,
                         .window_rope_base = window_rope_base(b),
                         .logit_softcap = m.real("final_logit_softcapping", 0).value_or(0),
                         .attention_gates = DecoderTraits::Gates::PerValue,
                         .logit_scale = m.required_real("logit_scale", 0)};
    traits.after_embeddings = [](Builder &builder, kernels::Slot x) {
        builder.add(kernels::Norm{x, x, kernels::kNoWeight, builder.hyper().norm_epsilon});
    };
    emit_decoder(b, traits);
}

// spark2_5: Spark X2.5 1.7B and 4B. A gate for each head. Window and full layers differ in the base and number of
// rotated dimensions of RoPE.
//
// The model's GELU is the exact one, as here; llama.cpp computes the approximation by tanh.
void emit_spark2_5(Builder &b) {
    emit_decoder(b, {.pairs = kernels::RopeTable::Pairs::Halves,
                     .act = kernels::Activation::Kind::GeluErf,
                     .full = full_layers(b, 0),
                     .window = b.metadata().required_integer("attention.sliding_window", 1, INT32_MAX),
                     .window_rope_base = window_rope_base(b),
                     .window_rope_dimensions = window_rope_dimensions(b),
                     .attention_gates = DecoderTraits::Gates::PerHead});
}

// laguna: Laguna XS, S (a gate for each head; one full layer, then three window layers with more heads) and M (a gate
// for each value, no windows). Gates are softplus; the first layers are dense.
void emit_laguna(Builder &b) {
    DecoderTraits traits{.pairs = kernels::RopeTable::Pairs::Halves,
                         .head_norm = DecoderTraits::HeadNorm::PerHead,
                         .heads = by_layer(b, "attention.head_count", 1, 4096, b.hyper().head_count),
                         .kv_heads = by_layer(b, "attention.head_count_kv", 1, 4096, b.hyper().head_count_kv),
                         .window = sliding_window(b, 0),
                         .attention_gates = DecoderTraits::Gates::ByRows,
                         .softplus_gates = true};
    if (traits.window > 0) {
        traits.full = full_layers(b, 4, true);
        traits.window_rope_base = window_rope_base(b);
        traits.window_rope_dimensions = window_rope_dimensions(b);
    }
    with_experts(traits, {.score = ExpertTraits::Score::Sigmoid});
    emit_decoder(b, traits);
}

// step35: Step 3.5 and 3.7. A gate for each head; layers differ in heads; full layers rotate the first half of what window
// layers rotate. Hidden values are limited after SiLU, with one limit for experts and one for shared experts and dense
// layers.
void emit_step35(Builder &b) {
    const HyperParameters &h = b.hyper();
    const auto some_layer_has = [&](const char *name) {
        bool has = false;
        for (int32_t i = 0; i < h.block_count; ++i) has |= b.has(layer_prefix(i) + name);
        return has;
    };
    const bool normed = some_layer_has("attn_q_norm.weight"), gated = some_layer_has("attn_gate.weight");
    DecoderTraits traits{
        .pairs = kernels::RopeTable::Pairs::Halves,
        .head_norm = normed ? DecoderTraits::HeadNorm::PerHead : DecoderTraits::HeadNorm::None,
        .silu_limits = silu_limits(b, "swiglu_clamp_shexp"),
        .draft_before_norm = true,
        .heads = by_layer(b, "attention.head_count", 1, 4096, h.head_count),
        .kv_heads = by_layer(b, "attention.head_count_kv", 1, 4096, h.head_count_kv),
        .full = full_layers(b, 0),
        .window = b.metadata().required_integer("attention.sliding_window", 1, INT32_MAX),
        .rope_dimensions = h.rope_dimensions / 2,
        .window_rope_base = window_rope_base(b),
        .window_rope_dimensions = h.rope_dimensions,
        .attention_gates = gated ? DecoderTraits::Gates::PerHead : DecoderTraits::Gates::None};
    with_experts(traits, {.score = ExpertTraits::Score::Sigmoid,
                          .limits = silu_limits(b, "swiglu_clamp_exp"),
                          .shared_limits = traits.silu_limits,
                          .by_presence = true});
    emit_decoder(b, traits);
}

}  // namespace runnel::model
