// Mixture-of-experts families with few differences from others.
#include "engine/model/experts.h"
#include "engine/model/families.h"

namespace runnel::model {

using HeadNorm = DecoderTraits::HeadNorm;
using Pairs = kernels::RopeTable::Pairs;
using Score = ExpertTraits::Score;

// deepseek (DeepSeek MoE 16B), bailingmoe (Ling 1): llama with experts and a shared one.
void emit_deepseek(Builder &b) {
    DecoderTraits traits{.pairs = Pairs::Adjacent};
    with_experts(traits, {});
    emit_decoder(b, traits);
}

// deepseek2-ocr: the text part of DeepSeek-OCR.
void emit_deepseek2_ocr(Builder &b) {
    if (sliding_window(b, 0) > 0)
        b.metadata().fail("attention.sliding_window", "is not supported for this architecture");
    DecoderTraits traits{.pairs = Pairs::Halves};
    with_experts(traits, {});
    emit_decoder(b, traits);
}

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

// mellum: Mellum 2. Like qwen3moe, but three of four layers have a window; their RoPE is not scaled.
void emit_mellum(Builder &b) {
    DecoderTraits traits{.pairs = Pairs::Halves, .head_norm = HeadNorm::PerHead};
    traits.window = sliding_window(b, 0);
    if (traits.window > 0) {
        traits.full = full_layers(b, 4);
        const double base = b.metadata().real("rope.freq_base").value_or(10000);
        traits.window_rope_base = base;
        // The model has one base; files repeat it in this key.
        (void)b.metadata().real("rope.freq_base_swa");
    }
    with_experts(traits, {.normalize = true});
    emit_decoder(b, traits);
}

// maple: Maple. Like qwen3moe, with windows in some layers; only those have RoPE. Hidden values are limited before SiLU.
void emit_maple(Builder &b) {
    const Metadata &m = b.metadata();
    const char *scaling = "rope.scaling.type";
    if (m.text(scaling).value_or("none") != "none") m.fail(scaling, "is not supported for this architecture");
    DecoderTraits traits{.pairs = Pairs::Halves,
                         .head_norm = HeadNorm::PerHead,
                         .full = full_layers(b, 0),
                         .window = m.required_integer("attention.sliding_window", 1, INT32_MAX),
                         .rope_on_full = false,
                         .window_rope_base = window_rope_base(b),
                         .window_rope_dimensions = window_rope_dimensions(b)};
    with_experts(traits, {.normalize = true, .limits = silu_limits(b, "swiglu_clamp_exp", true)});
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

// mimo2: MiMo-V2. Full and window layers differ in K/V heads and RoPE; a layer has sinks if the file has
// their tensor; values are narrower than keys; the output of attention is multiplied by attention.value_scale.
void emit_mimo2(Builder &b) {
    const Metadata &m = b.metadata();
    const double value_scale = m.real("attention.value_scale").value_or(0);
    DecoderTraits traits{.pairs = Pairs::Halves,
                         .heads = by_layer(b, "attention.head_count", 1, 4096, b.hyper().head_count),
                         .kv_heads = by_layer(b, "attention.head_count_kv", 1, 4096, b.hyper().head_count_kv),
                         .full = full_layers(b, 0),
                         .window = m.required_integer("attention.sliding_window", 1, INT32_MAX),
                         .window_rope_base = window_rope_base(b),
                         .attention_out_scale = value_scale == 0 ? 1 : value_scale};
    traits.draft_before_norm = true;
    with_experts(traits, {.score = Score::Sigmoid, .normalize = true, .by_presence = true});
    emit_decoder(b, traits);
}

// cohere2moe: North Mini Code. Both halves of a layer share one norm; one full layer, then three window layers.
// Window layers, the leading dense layers and draft layers have RoPE. Routed and shared experts are each weighted
// by 1/2.
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
        traits.rotated.push_back(!traits.full[i] || static_cast<int64_t>(i) < dense ||
                                 static_cast<int64_t>(i) >= b.hyper().block_count);
    with_experts(traits, {.score = Score::Sigmoid});
    const auto whole = traits.feed_forward;
    traits.feed_forward = [whole](Builder &builder, int32_t layer, const SubLayer &sublayer) {
        SubLayer half = sublayer;
        if (builder.has("blk." + std::to_string(layer) + ".ffn_up_shexp.weight")) half.scale *= 0.5f;
        whole(builder, layer, half);
    };
    emit_decoder(b, traits);
}

// grok: Grok 1. Norms before and after both halves; scores have their own scale and a soft-cap. The numbers are those
// of files without the keys.
void emit_grok(Builder &b) {
    const Metadata &m = b.metadata();
    const bool new_name = b.has("blk.0.post_ffw_norm.weight");
    DecoderTraits traits{.pairs = Pairs::Halves,
                         .block = DecoderTraits::Block::Sandwich,
                         .attn_post_norm = "attn_output_norm",
                         .ffn_post_norm = new_name ? "post_ffw_norm" : "layer_output_norm",
                         .attention_scale = m.real("attention.output_scale", 0).value_or(0.08838834764831845),
                         .attention_softcap = m.real("attn_logit_softcapping", 0).value_or(30),
                         .logit_softcap = m.real("final_logit_softcapping", 0).value_or(0),
                         .embedding_scale = m.real("embedding_scale").value_or(78.38367176906169),
                         .logit_scale = m.real("logit_scale").value_or(0.5773502691896257)};
    with_experts(traits, {.normalize = true, .act = kernels::Activation::Kind::GeluTanh});
    emit_decoder(b, traits);
}

// arctic: Snowflake Arctic. After attention, a dense network as wide as the residual stream; parallel to
// both, experts that read the layer's input.
void emit_arctic(Builder &b) {
    const DecoderTraits dense{.pairs = Pairs::Adjacent};
    const auto for_experts = [](Builder &builder) {
        return builder.slot("normed for experts", builder.hyper().embedding_length);
    };
    DecoderTraits traits = dense;
    traits.attention = [=](Builder &builder, int32_t layer, const SubLayer &sublayer) {
        const HyperParameters &h = builder.hyper();
        const std::string name = "blk." + std::to_string(layer) + ".ffn_norm_exps.weight";
        builder.add(kernels::Norm{.in = sublayer.add,
                                  .out = for_experts(builder),
                                  .weight = builder.vector(name, {h.embedding_length, "embedding_length"}),
                                  .eps = h.norm_epsilon});
        emit_attention(builder, dense, layer, sublayer, 0);
    };
    traits.feed_forward = [=](Builder &builder, int32_t layer, const SubLayer &sublayer) {
        emit_feed_forward(builder, dense, layer, sublayer, builder.hyper().embedding_length);
        emit_experts(builder, {.normalize = true}, layer, {for_experts(builder), sublayer.out, sublayer.out});
    };
    emit_decoder(b, traits);
}

}  // namespace runnel::model
