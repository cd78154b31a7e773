// falcon: Falcon 7B, 40B and 180B. Both halves of a layer in parallel; the larger models norm the input of
// attention separately (attn_norm_2). Exact GELU without a gate.
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_falcon(Builder &b) {
    const bool two_norms = b.has("blk.0.attn_norm_2.weight");
    emit_decoder(b, {.pairs = kernels::RopeTable::Pairs::Halves,
                     .block = DecoderTraits::Block::Parallel,
                     .norm = kernels::Norm::Kind::Layer,
                     .norm_biases = true,
                     .act = kernels::Activation::Kind::GeluErf,
                     .gated = false,
                     .attn_norm = two_norms ? "attn_norm_2" : "attn_norm",
                     .ffn_norm = two_norms ? "attn_norm" : ""});
}

}  // namespace runnel::model
