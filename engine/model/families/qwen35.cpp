// qwen35, qwen35moe: Qwen3.5, 3.6 and 3.8. Three gated delta nets, then gated attention with RoPE on a part of
// each head; experts with a gated shared one in the MoE models. (For text, the interleaved M-RoPE turns every
// pair by the same position: plain RoPE.)
#include "engine/model/experts.h"
#include "engine/model/families.h"
#include "engine/model/recurrent.h"

namespace runnel::model {
namespace {

void emit_gated_qwen(Builder &b, bool grouped) {
    const int32_t rope = b.rope(kernels::RopeTable::Pairs::Halves);
    const std::vector<bool> recurrent = recurrent_layers(b, 4);
    const std::vector<int32_t> kv_heads = kv_heads_of_layers(b);
    DecoderTraits traits{.ffn_norm = "post_attention_norm"};
    traits.attention = [=](Builder &builder, int32_t layer, const SubLayer &sublayer) {
        const auto i = static_cast<size_t>(layer);
        if (recurrent[i])
            emit_gated_delta(builder, layer, sublayer, grouped);
        else
            emit_gated_attention(builder, layer, sublayer, rope, kv_heads[i]);
    };
    if (has_experts(b)) with_experts(traits, {.normalize = true});
    emit_decoder(b, traits);
}

}  // namespace

void emit_qwen35(Builder &b) {
    emit_gated_qwen(b, false);
}

// qwen3next: Qwen3-Next, as qwen35moe with value heads in the order of their key heads.
void emit_qwen3next(Builder &b) {
    emit_gated_qwen(b, true);
}

}  // namespace runnel::model
