// stablelm: StableLM 2, Zephyr and 3B. Layer norms, a quarter of each head is rotated. The 12B model has no
// norm for the feed-forward network, which is parallel to attention, and normalizes every query and key head
// with weights of its own.
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_stablelm(Builder &b) {
    const bool parallel = !b.has("blk.0.ffn_norm.weight"), head_norms = b.has("blk.0.attn_q_norm.weight");
    emit_decoder(
        b, {.pairs = kernels::RopeTable::Pairs::Halves,
            .block = parallel ? DecoderTraits::Block::Parallel : DecoderTraits::Block::PreNorm,
            .norm = kernels::Norm::Kind::Layer,
            .norm_biases = true,
            .head_norm = head_norms ? DecoderTraits::HeadNorm::OwnLayerNorm : DecoderTraits::HeadNorm::None,
            .ffn_norm = parallel ? "" : "ffn_norm"});
}

}  // namespace runnel::model
