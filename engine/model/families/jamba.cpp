// jamba: Jamba. Mamba mixers, and attention without RoPE where attention.head_count_kv is not 0; experts in
// the layers that have a router, their weights not normalized.
#include "engine/model/experts.h"
#include "engine/model/families.h"
#include "engine/model/recurrent.h"

namespace runnel::model {

void emit_jamba(Builder &b) {
    const std::vector<int32_t> kv_heads = kv_heads_of_layers(b);
    const DecoderTraits plain;
    DecoderTraits traits;
    traits.attention = [=](Builder &builder, int32_t layer, const SubLayer &sublayer) {
        const int32_t heads = kv_heads[static_cast<size_t>(layer)];
        if (heads == 0)
            emit_mamba_mixer(builder, layer, sublayer);
        else
            emit_attention(builder, plain, layer, sublayer, -1, heads);
    };
    traits.feed_forward = [=](Builder &builder, int32_t layer, const SubLayer &sublayer) {
        if (builder.has("blk." + std::to_string(layer) + ".ffn_gate_inp.weight"))
            emit_experts(builder, {.normalize = false}, layer, sublayer);
        else
            emit_feed_forward(builder, plain, layer, sublayer);
    };
    emit_decoder(b, traits);
}

}  // namespace runnel::model
