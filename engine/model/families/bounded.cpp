// Families with clamped queries, keys and values, and families with an activation that others lack.
#include <cmath>

#include "engine/model/experts.h"
#include "engine/model/families.h"

namespace runnel::model {

using Pairs = kernels::RopeTable::Pairs;
using Norms = kernels::Norm::Kind;

// olmo: OLMo 1 and 1.7. Layer norms without weights.
void emit_olmo(Builder &b) {
    emit_decoder(b, {.pairs = Pairs::Adjacent,
                     .norm = Norms::Layer,
                     .norm_weights = false,
                     .qkv_limit = b.metadata().real("attention.clamp_kqv", 0).value_or(0)});
}

// dbrx: DBRX. Layer norms without biases, experts in every layer.
void emit_dbrx(Builder &b) {
    DecoderTraits traits{.pairs = Pairs::Halves,
                         .norm = Norms::Layer,
                         .ffn_norm = "attn_output_norm",
                         .qkv_limit = b.metadata().required_real("attention.clamp_kqv", 0)};
    with_experts(traits, {.normalize = true});
    emit_decoder(b, traits);
}

namespace {

// xIELU's parameters, by layer. Files hold the two alphas as they are before softplus.
std::vector<kernels::Activation::Parameters> xielu_parameters(const Builder &b) {
    const size_t layers = static_cast<size_t>(b.hyper().block_count);
    const auto of_file = [&](const char *key) { return b.metadata().reals_of_file(key, layers); };
    const auto negative = of_file("xielu.alpha_n"), positive = of_file("xielu.alpha_p"),
               beta = of_file("xielu.beta"), eps = of_file("xielu.eps");
    const auto softplus = [](float x) { return x > 20 ? x : std::log1p(std::exp(x)); };
    std::vector<kernels::Activation::Parameters> parameters;
    for (size_t i = 0; i < layers; ++i)
        parameters.push_back({softplus(positive[i]), beta[i] + softplus(negative[i]), beta[i], eps[i]});
    return parameters;
}

}  // namespace

// apertus: Apertus 8B and 70B. xIELU without a gate; query and key heads are normed.
void emit_apertus(Builder &b) {
    emit_decoder(b, {.pairs = Pairs::Halves,
                     .head_norm = DecoderTraits::HeadNorm::PerHead,
                     .act = kernels::Activation::Kind::XIelu,
                     .act_parameters = xielu_parameters(b),
                     .gated = false});
}

// smallthinker: SmallThinker 4B and 21B. The router reads the layer's input, before the norm and attention; the
// experts' activation is ReLU. In models with windows, one full layer without RoPE is followed by three window
// layers; the window is 4096 whatever the key says.
void emit_smallthinker(Builder &b) {
    DecoderTraits traits{.pairs = Pairs::Halves};
    if (sliding_window(b, 0) > 0) {
        traits.window = 4096;
        traits.full = full_layers(b, 4, true);
        traits.rope_on_full = false;
    }
    const kernels::Slot input = b.slot("layer's input", b.hyper().embedding_length);
    const DecoderTraits plain = traits;
    traits.attention = [plain, input](Builder &builder, int32_t layer, const SubLayer &sublayer) {
        builder.add(kernels::Copy{.in = sublayer.add,
                                  .out = input,
                                  .from = {},
                                  .to = {},
                                  .width = builder.hyper().embedding_length});
        emit_attention(builder, plain, layer, sublayer, 0);
    };
    with_experts(traits, {.normalize = true, .act = kernels::Activation::Kind::Relu, .router_in = input});
    emit_decoder(b, traits);
}

}  // namespace runnel::model
