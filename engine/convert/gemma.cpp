#include "engine/convert/gemma.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gguf/printable.h"

namespace runnel::convert {
namespace {

// Writes which layers have a window: always, or only if others than every `period`-th layer have none.
void add_windows(Decoder &d, int64_t period, bool always) {
    const std::vector<std::string> types =
        d.layer_types("sliding_attention", d.config().whole("sliding_window_pattern", period));
    gguf::Array windowed(gguf::ValueType::Bool);
    bool usual = true;
    for (int64_t i = 0; i < d.layers(); ++i) {
        const std::string &type = types[static_cast<size_t>(i)];
        if (type != "sliding_attention" && type != "full_attention")
            d.config().fail("layer_types", "holds " + gguf::quoted(type) + ", which cannot be converted");
        windowed.push(type == "sliding_attention");
        usual = usual && (type == "full_attention") == ((i + 1) % period == 0);
    }
    d.plan().key("attention.sliding_window", static_cast<uint32_t>(d.config().whole("sliding_window")));
    if (always || !usual) d.plan().key("attention.sliding_window_pattern", windowed);
}

// RoPE of the layers with full attention, and the base of those with a window.
void add_ropes(Decoder &d) {
    d.add_rope(d.rope("full_attention", 1e6), d.head_dim());
    const RopeSettings local = d.rope("sliding_attention", 10000);
    const bool has_own = d.config().object("rope_parameters").has("sliding_attention");
    if (has_own && local.type != "default")
        local.parameters.fail("rope_type", "of window layers is not \"default\", which cannot be converted");
    d.plan().key("rope.freq_base_swa",
                 static_cast<float>(has_own ? local.base : d.config().real("rope_local_base_freq", 10000)));
}

// What both have in each layer. `norm`: the change of norms.
std::vector<LayerName> layer_names(Change norm) {
    return with_head_norms({{"input_layernorm.weight", "attn_norm.weight", norm},
                            {"self_attn.q_proj.weight", "attn_q.weight"},
                            {"self_attn.k_proj.weight", "attn_k.weight"},
                            {"self_attn.v_proj.weight", "attn_v.weight"},
                            {"self_attn.o_proj.weight", "attn_output.weight"},
                            {"post_attention_layernorm.weight", "post_attention_norm.weight", norm},
                            {"pre_feedforward_layernorm.weight", "ffn_norm.weight", norm},
                            {"post_feedforward_layernorm.weight", "post_ffw_norm.weight", norm},
                            {"mlp.gate_proj.weight", "ffn_gate.weight"},
                            {"mlp.up_proj.weight", "ffn_up.weight"},
                            {"mlp.down_proj.weight", "ffn_down.weight"}},
                           norm);
}

// --- Gemma 3n ------------------------------------------------------------------------------------------------

constexpr int64_t kStreams = 4;

constexpr LayerName kAltUpNames[] = {{"altup.router_norm.weight", "altup_router_norm.weight"},
                                     {"altup.modality_router.weight", "altup_router.weight"},
                                     {"altup.prediction_coefs.weight", "altup_predict_coef.weight"},
                                     {"altup.correction_coefs.weight", "altup_correct_coef.weight"},
                                     {"altup.correct_output_scale", "altup_correct_scale.weight"},
                                     {"laurel.linear_left.weight", "laurel_l.weight"},
                                     {"laurel.linear_right.weight", "laurel_r.weight"},
                                     {"laurel.post_laurel_norm.weight", "laurel_post_norm.weight"},
                                     {"per_layer_input_gate.weight", "inp_gate.weight"},
                                     {"per_layer_projection.weight", "proj.weight"},
                                     {"post_per_layer_input_norm.weight", "post_norm.weight"}};

// The x below which a share of the standard normal distribution lies; 0 < share < 1.
double normal_quantile(double share) {
    double low = -40, high = 40;
    for (int i = 0; i < 100; ++i) {
        const double middle = (low + high) / 2;
        (std::erfc(-middle / std::numbers::sqrt2) / 2 < share ? low : high) = middle;
    }
    return low;
}

// By layer: how many deviations above the mean a gate must be to stay; -inf for layers without sparse activations.
std::vector<float> sparsity_scales(const Decoder &d) {
    constexpr const char *kKey = "activation_sparsity_pattern";
    const auto layers = static_cast<size_t>(d.layers());
    // Without a list, the first 10 layers of large models are sparse.
    std::vector<double> shares(layers);
    if (d.config().has(kKey))
        shares = d.config().reals(kKey);
    else if (layers > 10)
        std::fill_n(shares.begin(), 10, 0.95);
    if (shares.size() != layers) d.config().fail(kKey, "does not have one entry per layer");
    std::vector<float> scales;
    for (const double share : shares) {
        if (!(share >= 0 && share < 1)) d.config().fail(kKey, "holds a number that is not in [0, 1)");
        scales.push_back(share == 0 ? -std::numeric_limits<float>::infinity()
                                    : static_cast<float>(normal_quantile(share)));
    }
    return scales;
}

// One tensor of the square matrices NAME.0.weight, NAME.1.weight, ... of all streams but the first.
void add_stream_matrices(Decoder &d, const std::string &from, const std::string &to) {
    Rows rows{.sources = {}, .rows = d.width(), .columns = d.width()};
    for (int64_t i = 0; i + 1 < kStreams; ++i) {
        rows.sources.push_back(&d.plan().require(d.source_name(from + "." + std::to_string(i) + ".weight")));
        check_shape(*rows.sources.back(), {d.width(), d.width()});
    }
    d.plan().add(to, {d.width(), d.width(), kStreams - 1}, std::move(rows));
}

// The table of the embeddings for every layer. The model takes row 0 for tokens beyond its end (of images and sound).
void add_layer_embeddings(Decoder &d, int64_t size) {
    const SourceTensor &table = d.plan().require(d.source_name("embed_tokens_per_layer.weight"));
    if (table.shape.size() != 2 || table.shape[0] < 1) refuse_tensor(table, "is not a matrix");
    check_shape(table, {table.shape[0], d.layers() * size});
    Rows rows{.sources = {&table}, .rows = d.vocabulary(), .columns = table.columns()};
    rows.order = [own = table.shape[0]](int64_t row) { return row < own ? row : 0; };
    d.plan().add("per_layer_token_embd.weight", {table.columns(), d.vocabulary()}, std::move(rows));
    d.plan().copy(d.source_name("per_layer_model_projection.weight"), "per_layer_model_proj.weight");
    d.plan().copy(d.source_name("per_layer_projection_norm.weight"), "per_layer_proj_norm.weight");
}

}  // namespace

void convert_gemma3(Decoder &d) {
    const Config &config = d.config();
    d.require_activation("hidden_activation", {"gelu_pytorch_tanh"});
    config.require_absent("attn_logit_softcapping");
    config.require_flag("use_bidirectional_attention", false, false);
    config.require_flag("attention_bias", false, false);
    // Scores are divided by the root of this. In GGUF it follows from the sizes.
    const double scale = config.real("query_pre_attn_scalar", 256),
                 usual = d.layers() == 62 ? static_cast<double>(d.width()) / static_cast<double>(d.heads())
                                          : static_cast<double>(d.head_dim());
    if (scale != usual)
        config.fail("query_pre_attn_scalar", "is not the size of a head, which cannot be converted");
    d.add_dense_sizes();
    add_windows(d, 6, false);
    add_ropes(d);
    if (config.has("final_logit_softcapping"))
        d.plan().key("final_logit_softcapping", static_cast<float>(config.real("final_logit_softcapping")));
    d.add_embeddings(Change::PlusOne);
    const std::vector<LayerName> names = layer_names(Change::PlusOne);
    for (int64_t i = 0; i < d.layers(); ++i) d.add_layer(i, names);
}

void convert_gemma3n(Decoder &d) {
    const Config &config = d.config();
    Plan &plan = d.plan();
    d.require_activation("hidden_activation", {"gelu_pytorch_tanh"});
    config.require_flag("attention_bias", false, false);
    config.require_flag("altup_correct_scale", true, true);
    if (config.whole("altup_num_inputs", kStreams) != kStreams)
        config.fail("altup_num_inputs", "is not 4, the only number that can be converted");
    if (config.whole("altup_active_idx", 0) != 0)
        config.fail("altup_active_idx", "is not 0, the only stream that can be converted");
    const int64_t shared = config.whole("num_kv_shared_layers"),
                  layer_input = config.whole("hidden_size_per_layer_input");
    if (shared >= d.layers()) config.fail("num_kv_shared_layers", "leaves no layer with keys and values");
    constexpr int64_t kMostLayerInput = 65536;
    if (layer_input < 1 || layer_input > kMostLayerInput)
        config.fail("hidden_size_per_layer_input", "is not between 1 and 65536");
    d.add_dense_sizes();
    add_windows(d, 5, true);
    add_ropes(d);
    plan.key("final_logit_softcapping", static_cast<float>(config.real("final_logit_softcapping")));
    plan.key("altup.num_inputs", static_cast<uint32_t>(kStreams));
    plan.key("altup.active_idx", uint32_t{0});
    plan.key("embedding_length_per_layer_input", static_cast<uint32_t>(layer_input));
    plan.key("attention.shared_kv_layers", static_cast<uint32_t>(shared));
    const std::vector<float> scales = sparsity_scales(d);
    plan.key("activation_sparsity_scale", std::span<const float>(scales));
    d.add_embeddings();
    add_layer_embeddings(d, layer_input);
    add_stream_matrices(d, "altup_projections", "altup_proj.weight");
    add_stream_matrices(d, "altup_unembed_projections", "altup_unembd_proj.weight");
    const std::vector<LayerName> names = layer_names(Change::None);
    // The last layers read the keys and values of others. Published folders have their matrices all the same.
    std::vector<LayerName> shared_names = names;
    for (LayerName &name : shared_names)
        name.optional =
            name.to == "attn_k.weight" || name.to == "attn_v.weight" || name.to == "attn_k_norm.weight";
    for (int64_t i = 0; i < d.layers(); ++i) {
        d.add_layer(i, i < d.layers() - shared ? names : shared_names);
        d.add_layer(i, kAltUpNames);
    }
}

}  // namespace runnel::convert
