// minimax-01: MiniMax-Text-01, MiniMax-M1. Seven layers of lightning attention, then attention with RoPE on a part
// of each head; experts in every layer. What is added to a half's output is its normalized input, scaled.
#include "engine/model/experts.h"
#include "engine/model/families.h"
#include "engine/model/recurrent.h"

namespace runnel::model {

void emit_minimax_01(Builder &b) {
    const std::vector<bool> recurrent = recurrent_layers(b, 8);
    const std::vector<int32_t> kv_heads = kv_heads_of_layers(b);
    const int32_t rope = b.rope(kernels::RopeTable::Pairs::Halves);
    const DecoderTraits plain;
    DecoderTraits traits{.block = DecoderTraits::Block::NormedResidual,
                         .normed_residual_scale = b.metadata().required_real("residual_scale", 0)};
    traits.attention = [=](Builder &builder, int32_t layer, const SubLayer &sublayer) {
        const auto i = static_cast<size_t>(layer);
        if (recurrent[i])
            emit_lightning(builder, layer, sublayer);
        else
            emit_attention(builder, plain, layer, sublayer, rope, kv_heads[i]);
    };
    with_experts(traits, {.normalize = true});
    emit_decoder(b, traits);
}

}  // namespace runnel::model
