// olmo2: OLMo 2 and 3. Norms only after the halves of a layer, and over all query and key heads together. In
// OLMo 3, three of four layers have windows; their RoPE lacks the scaling of the full layers.
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_olmo2(Builder &b) {
    const Metadata &m = b.metadata();
    DecoderTraits traits{.pairs = kernels::RopeTable::Pairs::Halves,
                         .block = DecoderTraits::Block::PostNorm,
                         .head_norm = DecoderTraits::HeadNorm::WholeRow};
    traits.window = sliding_window(b, 0);
    if (traits.window > 0) {
        traits.full = full_layers(b, 4);
        traits.window_rope_base = m.real("rope.freq_base").value_or(10000);
    }
    emit_decoder(b, traits);
}

}  // namespace runnel::model
