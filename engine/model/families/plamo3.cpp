// plamo3: PLaMo 3. Norms before and after each half of a layer, normed query and key heads; seven window layers,
// then a full one. RoPE of window layers has a base of its own and no scaling.
//
// The model's YaRN interpolates between fractional indices of pairs. Files cannot say so, and llama.cpp rounds
// the indices, as for every family; the same is done here.
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_plamo3(Builder &b) {
    DecoderTraits traits{.pairs = kernels::RopeTable::Pairs::Halves,
                         .block = DecoderTraits::Block::Sandwich,
                         .head_norm = DecoderTraits::HeadNorm::PerHead,
                         .window = sliding_window(b, 0)};
    if (traits.window > 0) {
        traits.full = full_layers(b, 8);
        traits.window_rope_base = b.metadata().real("rope.freq_base_swa").value_or(10000);
    }
    emit_decoder(b, traits);
}

}  // namespace runnel::model
