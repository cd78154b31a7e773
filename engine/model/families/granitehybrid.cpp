// granitehybrid: Granite 4. As granite, with Mamba-2 mixers where attention.head_count_kv is 0.
#include "engine/model/experts.h"
#include "engine/model/families.h"
#include "engine/model/recurrent.h"

namespace runnel::model {

void emit_granitehybrid(Builder &b) {
    const std::vector<int32_t> kv_heads = kv_heads_of_layers(b);
    const bool rotated = b.metadata().boolean("rope.scaling.finetuned").value_or(true);
    const int32_t rope = rotated ? b.rope(kernels::RopeTable::Pairs::Adjacent) : -1;
    const DecoderTraits plain;
    DecoderTraits traits = granite_scales(b);
    traits.attention = [=](Builder &builder, int32_t layer, const SubLayer &sublayer) {
        const int32_t heads = kv_heads[static_cast<size_t>(layer)];
        if (heads == 0)
            emit_mamba2_mixer(builder, layer, sublayer);
        else
            emit_attention(builder, plain, layer, sublayer, rope, heads);
    };
    if (has_experts(b)) with_experts(traits, {.normalize = true});
    emit_decoder(b, traits);
}

}  // namespace runnel::model
