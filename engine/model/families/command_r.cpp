// command-r: Command R, R+ and Aya. Attention and feed-forward network in parallel after one layer norm
// without biases; logits are multiplied by logit_scale. R+ normalizes every query and key head with
// weights of its own.
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_command_r(Builder &b) {
    const bool head_norms = b.has("blk.0.attn_q_norm.weight");
    emit_decoder(
        b, {.pairs = kernels::RopeTable::Pairs::Adjacent,
            .block = DecoderTraits::Block::Parallel,
            .norm = kernels::Norm::Kind::Layer,
            .head_norm = head_norms ? DecoderTraits::HeadNorm::OwnLayerNorm : DecoderTraits::HeadNorm::None,
            .ffn_norm = "",
            .logit_scale = b.metadata().required_real("logit_scale", 0)});
}

}  // namespace runnel::model
