// Families whose positions are biases by distance (ALiBi) instead of rotations.
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

using Act = kernels::Activation::Kind;
using Norms = kernels::Norm::Kind;

// bloom: BLOOM and BLOOMZ. The embeddings are normed.
void emit_bloom(Builder &b) {
    DecoderTraits traits{.norm = Norms::Layer,
                         .norm_biases = true,
                         .biases = DecoderTraits::Biases::All,
                         .act = Act::GeluTanh,
                         .gated = false,
                         .largest_alibi_bias = 8};
    traits.after_embeddings = [](Builder &builder, kernels::Slot x) {
        const HyperParameters &h = builder.hyper();
        const Size width{h.embedding_length, "embedding_length"};
        builder.add(kernels::Norm{.in = x,
                                  .out = x,
                                  .weight = builder.vector("token_embd_norm.weight", width),
                                  .eps = h.norm_epsilon,
                                  .kind = Norms::Layer,
                                  .bias = builder.vector("token_embd_norm.bias", width)});
    };
    emit_decoder(b, traits);
}

// refact: Refact 1.6B.
void emit_refact(Builder &b) {
    emit_decoder(b, {.largest_alibi_bias = 8});
}

// jais: Jais 13B and 30B. Scores are divided by the head size, not by its root.
void emit_jais(Builder &b) {
    emit_decoder(b,
                 {.norm = Norms::Layer,
                  .norm_biases = true,
                  .biases = DecoderTraits::Biases::All,
                  .attention_scale = 1.0 / b.hyper().key_length,
                  .largest_alibi_bias = b.metadata().real("attention.max_alibi_bias", 0, 1024).value_or(0)});
}

// mpt: MPT 7B and 30B, and relatives with learned positions, which files without ALiBi need. Norms and matrices
// have biases in some files.
void emit_mpt(Builder &b) {
    const double bias = b.metadata().real("attention.max_alibi_bias", 0, 1024).value_or(0);
    emit_decoder(b, {.norm = Norms::Layer,
                     .norm_biases = b.has("output_norm.bias") || b.has("blk.0.attn_norm.bias"),
                     .act = Act::GeluTanh,
                     .gated = false,
                     .learned_positions = bias == 0 || b.has("position_embd.weight"),
                     .largest_alibi_bias = bias,
                     .qkv_limit = b.metadata().real("attention.clamp_kqv", 0).value_or(0)});
}

}  // namespace runnel::model
