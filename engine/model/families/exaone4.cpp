// exaone4: EXAONE 4. Norms only after the halves of a layer; normed query and key heads. The 32B model has
// windows on three of four layers, and only these have RoPE; without windows, all layers have it.
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_exaone4(Builder &b) {
    DecoderTraits traits{.pairs = kernels::RopeTable::Pairs::Halves,
                         .block = DecoderTraits::Block::PostNorm,
                         .head_norm = DecoderTraits::HeadNorm::PerHead};
    traits.window = sliding_window(b, 0);
    if (traits.window > 0) {
        traits.full = full_layers(b, 4);
        traits.rope_on_full = false;
    }
    emit_decoder(b, traits);
}

}  // namespace runnel::model
