// gemma2: norms before and after both halves of a layer, soft-caps on scores and logits, a window on every
// other layer beginning with the first. The 27B model (46 layers) scales scores by
// 1 / sqrt(embedding_length / head_count) instead of by the head size.
#include <cmath>

#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_gemma2(Builder &b) {
    const HyperParameters &h = b.hyper();
    const Metadata &m = b.metadata();
    const double share = double(h.embedding_length) / h.head_count;
    emit_decoder(b, {.pairs = kernels::RopeTable::Pairs::Halves,
                     .block = DecoderTraits::Block::Sandwich,
                     .act = kernels::Activation::Kind::GeluTanh,
                     .full = full_layers(b, 2),
                     .window = sliding_window(b, 4096),
                     .attention_scale = h.block_count == 46 ? 1 / std::sqrt(share) : 0,
                     .attention_softcap = m.real("attn_logit_softcapping", 0).value_or(50),
                     .logit_softcap = m.real("final_logit_softcapping", 0).value_or(30),
                     .embedding_scale = std::sqrt(double(h.embedding_length))});
}

}  // namespace runnel::model
