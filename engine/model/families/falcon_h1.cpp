// falcon-h1: Falcon-H1. Every layer adds attention and a Mamba-2 mixer of the same normed input to the stream;
// the model's multipliers are folded into the weights by the converter.
#include "engine/model/families.h"
#include "engine/model/recurrent.h"

namespace runnel::model {

void emit_falcon_h1(Builder &b) {
    const int32_t rope = b.rope(kernels::RopeTable::Pairs::Halves);
    const DecoderTraits plain;
    DecoderTraits traits;
    traits.attention = [=](Builder &builder, int32_t layer, const SubLayer &sublayer) {
        emit_mamba2_mixer(builder, layer, sublayer, false);
        emit_attention(builder, plain, layer, sublayer, rope);
    };
    emit_decoder(b, traits);
}

}  // namespace runnel::model
