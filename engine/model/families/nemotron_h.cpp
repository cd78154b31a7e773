// nemotron_h, nemotron_h_moe: Nemotron-H, Nemotron 3 Nano. A layer is one of: attention without positions
// (attention.head_count_kv is not 0), a squared-ReLU network or experts (feed_forward_length is not 0), or a
// Mamba-2 mixer. Super and Ultra send the experts' input through a narrower space (latent experts). A draft layer has
// attention and experts, and its last norm is a layer norm.
#include "engine/model/experts.h"
#include "engine/model/families.h"
#include "engine/model/recurrent.h"

namespace runnel::model {

void emit_nemotron_h(Builder &b) {
    const HyperParameters &h = b.hyper();
    const std::vector<int32_t> kv_heads = kv_heads_of_layers(b);
    const int64_t count = int64_t{h.block_count} + h.draft_layers;
    const std::vector<int64_t> hidden = b.metadata()
                                            .integers("feed_forward_length", count, 0, 1 << 20)
                                            .value_or(std::vector<int64_t>(count, 0));
    if (b.draft_block() && kv_heads[static_cast<size_t>(b.draft_layer())] == 0)
        b.metadata().fail("attention.head_count_kv", "is 0 for a draft layer");
    if (b.metadata().integer("moe_latent_size", 0, 1 << 20).value_or(0) > 0)
        b.metadata().fail("moe_latent_size", "latent experts are not supported yet");
    const DecoderTraits plain{.act = kernels::Activation::Kind::ReluSquared, .gated = false};
    const ExpertTraits experts{.score = ExpertTraits::Score::Sigmoid, .act = plain.act, .gated = false};
    DecoderTraits traits{.ffn_norm = "post_attention_norm",
                         .one_half = !b.draft_block(),
                         .draft_norm = kernels::Norm::Kind::Layer};
    traits.attention = [=](Builder &builder, int32_t layer, const SubLayer &sublayer) {
        const auto i = static_cast<size_t>(layer);
        const std::string router = "blk." + std::to_string(layer) + ".ffn_gate_inp.weight";
        if (kv_heads[i] > 0)
            emit_attention(builder, plain, layer, sublayer, -1, kv_heads[i]);
        else if (builder.has(router))
            emit_experts(builder, experts, layer, sublayer);
        else if (hidden[i] > 0)
            emit_feed_forward(builder, plain, layer, sublayer, hidden[i]);
        else
            emit_mamba2_mixer(builder, layer, sublayer);
    };
    traits.feed_forward = [=](Builder &builder, int32_t layer, const SubLayer &sublayer) {
        emit_experts(builder, experts, layer, sublayer);
    };
    emit_decoder(b, traits);
}

}  // namespace runnel::model
