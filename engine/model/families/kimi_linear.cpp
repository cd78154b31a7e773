// kimi-linear, bailingmoe3: Kimi Linear, Ling 3. Kimi delta attention, or latent attention where
// attention.head_count_kv is not 0; experts with a shared one after some dense layers. The draft block of bailingmoe3 is a layer
// with latent attention.
#include "engine/model/experts.h"
#include "engine/model/families.h"
#include "engine/model/latent.h"
#include "engine/model/recurrent.h"

namespace runnel::model {
namespace {

struct KimiTraits {
    int32_t rope = -1;  // of latent attention
    bool head_gates = false;
    double bound = 0;  // of the decays
};

DecoderTraits mixed_attention(const Builder &b, const KimiTraits &of) {
    const std::vector<int32_t> kv_heads = kv_heads_of_layers(b);
    DecoderTraits traits;
    traits.attention = [=](Builder &builder, int32_t layer, const SubLayer &sublayer) {
        if (kv_heads[static_cast<size_t>(layer)] == 0)
            emit_kimi_delta(builder, layer, sublayer, of.bound);
        else
            emit_latent_attention(builder, layer, sublayer, of.rope, {.head_gates = of.head_gates});
    };
    return traits;
}

}  // namespace

// Positions are not encoded: the part of a key that other models rotate stays as it is.
void emit_kimi_linear(Builder &b) {
    DecoderTraits traits = mixed_attention(b, {});
    with_experts(traits, {.score = ExpertTraits::Score::Sigmoid, .normalize = true});
    emit_decoder(b, traits);
}

void emit_bailingmoe3(Builder &b) {
    using Pairs = kernels::RopeTable::Pairs;
    const Metadata &m = b.metadata();
    if (!m.boolean("kda.safe_gate").value_or(true))
        m.fail("kda.safe_gate", "false: decays without a bound are not supported for this architecture");
    const char *key = "kda.gate_lower_bound";
    const double bound = m.required_real(key);
    if (!(bound < 0)) m.fail(key, "is not negative");
    // For text, M-RoPE is plain RoPE with pairs of the other kind.
    const int32_t rope = latent_rope(b, b.has_position_axes() ? Pairs::Halves : Pairs::Adjacent);
    if (b.draft_block() && kv_heads_of_layers(b)[static_cast<size_t>(b.draft_layer())] == 0)
        m.fail("attention.head_count_kv", "is 0 for a draft layer");
    DecoderTraits traits = mixed_attention(b, {.rope = rope, .head_gates = true, .bound = bound});
    const SiluLimits dense = silu_limits(b, "swiglu_clamp_shexp");
    traits.silu_limits = dense;
    with_experts(traits, {.score = ExpertTraits::Score::Sigmoid,
                          .limits = silu_limits(b, "swiglu_clamp_exp"),
                          .shared_limits = dense});
    emit_decoder(b, traits);
}

}  // namespace runnel::model
