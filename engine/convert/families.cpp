#include "engine/convert/families.h"

#include <cmath>

#include "engine/convert/experts.h"
#include "engine/convert/qwen35.h"
#include "gguf/file.h"
#include "gguf/printable.h"

namespace runnel::convert {
namespace {

// A setting that must have its neutral value, because the architecture has nothing for another.
void require_flag(const Config &config, std::string_view key, bool value, bool otherwise) {
    if (config.flag(key, otherwise) != value)
        config.fail(key, std::string("is ") + (value ? "false" : "true") + ", which cannot be converted");
}

void require_absent(const Config &config, std::string_view key) {
    if (config.has(key)) config.fail(key, "is set, which cannot be converted");
}

void add_layers(Decoder &d, const std::vector<LayerName> &attention,
                const std::vector<LayerName> &feed_forward) {
    for (int64_t i = 0; i < d.layers(); ++i) {
        d.add_layer(i, attention);
        d.add_layer(i, feed_forward);
    }
}

void add_dense_sizes(Decoder &d) {
    d.add_sizes();
    d.add_key_length();
    d.plan().key("attention.head_count_kv", static_cast<uint32_t>(d.kv_heads()));
    d.plan().key("feed_forward_length", static_cast<uint32_t>(d.config().whole("intermediate_size")));
}

// Llama 1 to 3, Mistral, and the many models of the same class.
void convert_llama(Decoder &d) {
    d.require_activation("hidden_act", {"silu"});
    require_absent(d.config(), "sliding_window");
    add_dense_sizes(d);
    d.add_rope(d.rope(), d.head_dim());
    d.add_embeddings();
    add_layers(d, plain_attention(true), plain_feed_forward());
}

void require_no_window(const Config &config) {
    require_flag(config, "use_sliding_window", false, false);
}

void convert_qwen2(Decoder &d) {
    d.require_activation("hidden_act", {"silu"});
    require_no_window(d.config());
    add_dense_sizes(d);
    d.add_rope(d.rope(), d.head_dim());
    d.add_embeddings();
    add_layers(d, plain_attention(), plain_feed_forward());
}

std::vector<LayerName> with_head_norms(std::vector<LayerName> names, Change change = Change::None) {
    names.push_back({"self_attn.q_norm.weight", "attn_q_norm.weight", change});
    names.push_back({"self_attn.k_norm.weight", "attn_k_norm.weight", change});
    return names;
}

void convert_qwen3(Decoder &d) {
    d.require_activation("hidden_act", {"silu"});
    require_no_window(d.config());
    add_dense_sizes(d);
    d.add_rope(d.rope(), d.head_dim());
    d.add_embeddings();
    add_layers(d, with_head_norms(plain_attention()), plain_feed_forward());
}

void convert_qwen3moe(Decoder &d) {
    const Config &config = d.config();
    d.require_activation("hidden_act", {"silu"});
    require_no_window(config);
    require_flag(config, "norm_topk_prob", true, false);
    if (config.whole("decoder_sparse_step", 1) != 1) config.fail("decoder_sparse_step", "is not 1");
    if (const text::Json *const dense = config.find("mlp_only_layers"); dense && !dense->empty())
        config.fail("mlp_only_layers", "is not empty, which cannot be converted");
    add_dense_sizes(d);
    const ExpertSizes sizes = add_expert_sizes(d);
    d.add_rope(d.rope(), d.head_dim());
    d.add_embeddings();
    for (int64_t i = 0; i < d.layers(); ++i) {
        d.add_layer(i, with_head_norms(plain_attention()));
        const LayerName names[] = {{"post_attention_layernorm.weight", "ffn_norm.weight"},
                                   {"mlp.gate.weight", "ffn_gate_inp.weight"}};
        d.add_layer(i, names);
        add_gated_experts(d, i, sizes);
    }
}

// Writes which layers have a window, where they do not follow the architecture's own order.
void add_windows(Decoder &d, int64_t period) {
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
    if (!usual) d.plan().key("attention.sliding_window_pattern", windowed);
}

void convert_gemma3(Decoder &d) {
    const Config &config = d.config();
    d.require_activation("hidden_activation", {"gelu_pytorch_tanh"});
    require_absent(config, "attn_logit_softcapping");
    require_flag(config, "use_bidirectional_attention", false, false);
    require_flag(config, "attention_bias", false, false);
    // Scores are divided by the root of this. In GGUF it follows from the sizes.
    const double scale = config.real("query_pre_attn_scalar", 256),
                 usual = d.layers() == 62 ? static_cast<double>(d.width()) / static_cast<double>(d.heads())
                                          : static_cast<double>(d.head_dim());
    if (scale != usual)
        config.fail("query_pre_attn_scalar", "is not the size of a head, which cannot be converted");
    add_dense_sizes(d);
    add_windows(d, 6);
    d.add_rope(d.rope("full_attention", 1e6), d.head_dim());
    const RopeSettings local = d.rope("sliding_attention", 10000);
    const bool has_own = config.object("rope_parameters").has("sliding_attention");
    if (has_own && local.type != "default")
        local.parameters.fail("rope_type", "of window layers is not \"default\", which cannot be converted");
    d.plan().key("rope.freq_base_swa",
                 static_cast<float>(has_own ? local.base : config.real("rope_local_base_freq", 10000)));
    if (config.has("final_logit_softcapping"))
        d.plan().key("final_logit_softcapping", static_cast<float>(config.real("final_logit_softcapping")));
    d.add_embeddings(Change::PlusOne);
    constexpr Change kNorm = Change::PlusOne;
    const std::vector<LayerName> names =
        with_head_norms({{"input_layernorm.weight", "attn_norm.weight", kNorm},
                         {"self_attn.q_proj.weight", "attn_q.weight"},
                         {"self_attn.k_proj.weight", "attn_k.weight"},
                         {"self_attn.v_proj.weight", "attn_v.weight"},
                         {"self_attn.o_proj.weight", "attn_output.weight"},
                         {"post_attention_layernorm.weight", "post_attention_norm.weight", kNorm},
                         {"pre_feedforward_layernorm.weight", "ffn_norm.weight", kNorm},
                         {"post_feedforward_layernorm.weight", "post_ffw_norm.weight", kNorm},
                         {"mlp.gate_proj.weight", "ffn_gate.weight"},
                         {"mlp.up_proj.weight", "ffn_up.weight"},
                         {"mlp.down_proj.weight", "ffn_down.weight"}},
                        kNorm);
    add_layers(d, names, {});
}

// LFM2: gated short convolutions, and attention in the layers that layer_types says.
void convert_lfm2(Decoder &d) {
    const Config &config = d.config();
    require_flag(config, "conv_bias", false, false);
    d.add_sizes("norm_eps");
    d.add_key_length();
    const SourceTensor &gate = d.plan().require(d.source_name(0, "feed_forward.w1.weight"));
    if (gate.shape.size() != 2) refuse_tensor(gate, "is not a matrix");
    d.plan().key("feed_forward_length", static_cast<uint32_t>(gate.shape[0]));
    d.plan().key("shortconv.l_cache", static_cast<uint32_t>(config.whole("conv_L_cache", 3)));
    const std::vector<std::string> types = d.layer_types();
    gguf::Array kv_heads(gguf::ValueType::I32);
    for (const std::string &type : types) {
        if (type != "conv" && type != "full_attention")
            config.fail("layer_types", "holds " + gguf::quoted(type) + ", which cannot be converted");
        kv_heads.push(static_cast<int32_t>(type == "conv" ? 0 : d.kv_heads()));
    }
    d.plan().key("attention.head_count_kv", kv_heads);
    d.add_rope(d.rope({}, 1e6), d.head_dim());
    d.add_embeddings(Change::None, "embedding_norm.weight", "token_embd_norm.weight");
    const std::vector<LayerName> both = {{"operator_norm.weight", "attn_norm.weight"},
                                         {"ffn_norm.weight", "ffn_norm.weight"},
                                         {"feed_forward.w1.weight", "ffn_gate.weight"},
                                         {"feed_forward.w3.weight", "ffn_up.weight"},
                                         {"feed_forward.w2.weight", "ffn_down.weight"}},
                                 attention = {{"self_attn.q_proj.weight", "attn_q.weight"},
                                              {"self_attn.k_proj.weight", "attn_k.weight"},
                                              {"self_attn.v_proj.weight", "attn_v.weight"},
                                              {"self_attn.out_proj.weight", "attn_output.weight"},
                                              {"self_attn.q_layernorm.weight", "attn_q_norm.weight"},
                                              {"self_attn.k_layernorm.weight", "attn_k_norm.weight"}},
                                 convolution = {
                                     {"conv.conv.weight", "shortconv.conv.weight", Change::Squeeze},
                                     {"conv.in_proj.weight", "shortconv.in_proj.weight"},
                                     {"conv.out_proj.weight", "shortconv.out_proj.weight"}};
    for (int64_t i = 0; i < d.layers(); ++i) {
        d.add_layer(i, both);
        d.add_layer(i, types[static_cast<size_t>(i)] == "conv" ? convolution : attention);
    }
}

// gpt-oss: experts in MXFP4, attention with sinks, every other layer with a window.
void convert_gpt_oss(Decoder &d) {
    d.require_activation("hidden_act", {"silu"});
    d.add_sizes();
    d.add_key_length();
    d.plan().key("attention.head_count_kv", static_cast<uint32_t>(d.kv_heads()));
    const std::vector<std::string> types = d.layer_types();
    for (size_t i = 0; i < types.size(); ++i)
        if (types[i] != (i % 2 == 0 ? "sliding_attention" : "full_attention"))
            d.config().fail("layer_types", "does not alternate between window and full attention");
    d.plan().key("attention.sliding_window", static_cast<uint32_t>(d.config().whole("sliding_window")));
    const ExpertSizes sizes = add_expert_sizes(d);
    d.add_rope(d.rope({}, 150000), d.head_dim());
    d.add_embeddings();
    std::vector<LayerName> names = plain_attention();
    names.push_back({"self_attn.sinks", "attn_sinks.weight"});
    names.push_back({"post_attention_layernorm.weight", "post_attention_norm.weight"});
    names.push_back({"mlp.router.weight", "ffn_gate_inp.weight"});
    names.push_back({"mlp.router.bias", "ffn_gate_inp.bias"});
    for (int64_t i = 0; i < d.layers(); ++i) {
        d.add_layer(i, names);
        add_mxfp4_experts(d, i, sizes);
    }
}

constexpr std::string_view kGemma3Defaults =
    R"({"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256, "rope_theta": 1e6, "sliding_window": 4096})";

constexpr Family kFamilies[] = {
    {"LlamaForCausalLM", "llama", convert_llama},
    {"MistralForCausalLM", "llama", convert_llama},
    {"Qwen2ForCausalLM", "qwen2", convert_qwen2},
    {"Qwen3ForCausalLM", "qwen3", convert_qwen3},
    {"Qwen3MoeForCausalLM", "qwen3moe", convert_qwen3moe},
    {"Gemma3ForCausalLM", "gemma3", convert_gemma3, kGemma3Defaults},
    {"Gemma3ForConditionalGeneration", "gemma3", convert_gemma3, kGemma3Defaults},
    {"Qwen3_5ForCausalLM", "qwen35", convert_qwen35},
    {"Qwen3_5ForConditionalGeneration", "qwen35", convert_qwen35},
    {"Lfm2ForCausalLM", "lfm2", convert_lfm2},
    {"GptOssForCausalLM", "gpt-oss", convert_gpt_oss},
};

}  // namespace

std::span<const Family> families() {
    return kFamilies;
}

}  // namespace runnel::convert
