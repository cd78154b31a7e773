// glm4moe: GLM 4.5, 4.6 and 4.7 (Air and full). Half of each head is rotated, in halves, unlike glm4; the
// full model normalizes its query and key heads. The first layers are dense; experts are chosen by
// sigmoid scores with a bias.
#include "engine/model/experts.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_glm4moe(Builder &b) {
    DecoderTraits traits{.pairs = kernels::RopeTable::Pairs::Halves, .ffn_norm = "post_attention_norm"};
    if (b.has("blk.0.attn_q_norm.weight")) traits.head_norm = DecoderTraits::HeadNorm::PerHead;
    with_experts(traits, {.score = ExpertTraits::Score::Sigmoid});
    emit_decoder(b, traits);
}

}  // namespace runnel::model
