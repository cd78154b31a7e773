// Families whose attended values are multiplied by the sigmoid of a gate, element by element, before the output
// matrix.
#include <cmath>

#include "engine/model/experts.h"
#include "engine/model/families.h"

namespace runnel::model {

// afmoe: Arcee Trinity. Norms before and behind both halves; three window layers of four, dense layers first,
// and every fourth layer without RoPE, whether there are windows or not.
void emit_afmoe(Builder &b) {
    const Metadata &m = b.metadata();
    DecoderTraits traits{.pairs = kernels::RopeTable::Pairs::Halves,
                         .block = DecoderTraits::Block::Sandwich,
                         .head_norm = DecoderTraits::HeadNorm::PerHead,
                         .window = sliding_window(b, 0),
                         .attention_gate = true,
                         .embedding_scale = std::sqrt(double(b.hyper().embedding_length))};
    if (traits.window > 0) traits.full = full_layers(b, 4);
    if (const auto base = m.real("rope.freq_base_swa"); base && traits.window > 0)
        traits.window_rope_base = *base;
    for (int32_t i = 0; i < b.hyper().block_count; ++i) traits.rotated.push_back((i + 1) % 4 != 0);
    with_experts(traits, {.score = ExpertTraits::Score::Sigmoid});
    emit_decoder(b, traits);
}

// muse-glimmer: Muse-Glimmer 30B. Embeddings are normed without weights; norms before and behind both halves,
// those behind with an epsilon of their own; three window layers that rotate, then a full one that does not.
void emit_muse_glimmer(Builder &b) {
    const Metadata &m = b.metadata();
    const double base = m.real("rope.freq_base").value_or(10000);
    DecoderTraits traits{.pairs = kernels::RopeTable::Pairs::Adjacent,
                         .block = DecoderTraits::Block::Sandwich,
                         .post_norm_epsilon = 1e-8,
                         .head_norm = DecoderTraits::HeadNorm::PerHead,
                         .full = full_layers(b, 4),
                         .window = m.required_integer("attention.sliding_window", 1, INT32_MAX),
                         .rope_on_full = false,
                         .window_rope_base = m.real("rope.freq_base_swa").value_or(base),
                         .logit_softcap = m.real("final_logit_softcapping", 0).value_or(0),
                         .attention_gate = true,
                         .logit_scale = m.required_real("logit_scale", 0)};
    traits.after_embeddings = [](Builder &builder, kernels::Slot x) {
        builder.add(kernels::Norm{x, x, kernels::kNoWeight, builder.hyper().norm_epsilon});
    };
    emit_decoder(b, traits);
}

}  // namespace runnel::model
