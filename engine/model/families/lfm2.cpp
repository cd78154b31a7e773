// lfm2, lfm2moe: LFM2. Gated short convolutions, and attention with normed heads where
// attention.head_count_kv is not 0. The final norm is stored as token_embd_norm.
#include "engine/model/experts.h"
#include "engine/model/families.h"
#include "engine/model/recurrent.h"

namespace runnel::model {

void emit_lfm2(Builder &b) {
    const std::vector<int32_t> kv_heads = kv_heads_of_layers(b);
    const int32_t rope = b.rope(kernels::RopeTable::Pairs::Halves);
    DecoderTraits traits{.head_norm = DecoderTraits::HeadNorm::PerHead,
                         .output_norm = "token_embd_norm",
                         .window = sliding_window(b, 0)};
    traits.attention = [=](Builder &builder, int32_t layer, const SubLayer &sublayer) {
        const int32_t heads = kv_heads[static_cast<size_t>(layer)];
        if (heads == 0)
            emit_short_conv(builder, layer, sublayer);
        else
            emit_attention(builder, traits, layer, sublayer, rope, heads);
    };
    if (has_experts(b)) with_experts(traits, {.score = ExpertTraits::Score::Sigmoid, .normalize = true});
    emit_decoder(b, traits);
}

}  // namespace runnel::model
