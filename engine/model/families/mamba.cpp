// mamba, mamba2: Mamba, FalconMamba, Mamba-2, Codestral Mamba. Layers h = h + Mixer(N h), nothing else.
#include "engine/model/families.h"
#include "engine/model/recurrent.h"

namespace runnel::model {

void emit_mamba(Builder &b) {
    DecoderTraits traits{.one_half = true};
    traits.attention = emit_mamba_mixer;
    emit_decoder(b, traits);
}

void emit_mamba2(Builder &b) {
    DecoderTraits traits{.one_half = true};
    traits.attention = [](Builder &builder, int32_t layer, const SubLayer &sublayer) {
        emit_mamba2_mixer(builder, layer, sublayer);
    };
    emit_decoder(b, traits);
}

}  // namespace runnel::model
