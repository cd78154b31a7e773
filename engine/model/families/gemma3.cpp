// gemma3: as gemma2 without soft-caps on scores, with normed query and key heads; five window layers, then a
// full one. RoPE of window layers: base 10000, no scaling. The 27B model (62 layers) scales scores
// by 1 / sqrt(embedding_length / head_count) instead of by the head size.
#include <cmath>

#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_gemma3(Builder &b) {
    const HyperParameters &h = b.hyper();
    const Metadata &m = b.metadata();
    const double share = double(h.embedding_length) / h.head_count;
    emit_decoder(b, {.pairs = kernels::RopeTable::Pairs::Halves,
                     .block = DecoderTraits::Block::Sandwich,
                     .head_norm = DecoderTraits::HeadNorm::PerHead,
                     .act = kernels::Activation::Kind::GeluTanh,
                     .full = full_layers(b, 6),
                     .window = sliding_window(b, 0),
                     .window_rope_base = m.real("rope.freq_base_swa").value_or(10000),
                     .attention_scale = h.block_count == 62 ? 1 / std::sqrt(share) : 0,
                     .logit_softcap = m.real("final_logit_softcapping", 0).value_or(0),
                     .embedding_scale = std::sqrt(double(h.embedding_length))});
}

}  // namespace runnel::model
