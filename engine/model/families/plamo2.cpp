// plamo2: PLaMo 2. A scan like Mamba-2's, or attention where attention.head_count_kv is not 0; norms before and
// after each half of a layer, and a norm of its own for every head.
#include <cmath>

#include "engine/model/families.h"
#include "engine/model/recurrent.h"

namespace runnel::model {

void emit_plamo2(Builder &b) {
    const std::vector<int32_t> kv_heads = kv_heads_of_layers(b);
    const int32_t rope = b.rope(kernels::RopeTable::Pairs::Halves);
    const DecoderTraits attention{.head_norm = DecoderTraits::HeadNorm::OwnRmsNorm,
                                  .attention_scale = 1 / std::sqrt(double(b.hyper().value_length))};
    DecoderTraits traits{.block = DecoderTraits::Block::Sandwich};
    traits.attention = [=](Builder &builder, int32_t layer, const SubLayer &sublayer) {
        const int32_t heads = kv_heads[static_cast<size_t>(layer)];
        if (heads == 0)
            emit_plamo2_mixer(builder, layer, sublayer);
        else
            emit_attention(builder, attention, layer, sublayer, rope, heads);
    };
    emit_decoder(b, traits);
}

}  // namespace runnel::model
