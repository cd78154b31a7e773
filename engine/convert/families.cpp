#include "engine/convert/families.h"

#include "engine/convert/experts.h"
#include "engine/convert/gemma.h"
#include "engine/convert/qwen35.h"
#include "gguf/file.h"
#include "gguf/printable.h"

namespace runnel::convert {
namespace {

void add_layers(Decoder &d, const std::vector<LayerName> &attention,
                const std::vector<LayerName> &feed_forward) {
    for (int64_t i = 0; i < d.layers(); ++i) {
        d.add_layer(i, attention);
        d.add_layer(i, feed_forward);
    }
}

// Llama 1 to 3, Mistral, and the many models of the same class.
void convert_llama(Decoder &d) {
    d.require_activation("hidden_act", {"silu"});
    d.config().require_absent("sliding_window");
    d.add_dense_sizes();
    d.add_rope(d.rope(), d.head_dim());
    d.add_embeddings();
    add_layers(d, plain_attention(true), plain_feed_forward());
}

void require_no_window(const Config &config) {
    config.require_flag("use_sliding_window", false, false);
}

void convert_qwen2(Decoder &d) {
    d.require_activation("hidden_act", {"silu"});
    require_no_window(d.config());
    d.add_dense_sizes();
    d.add_rope(d.rope(), d.head_dim());
    d.add_embeddings();
    add_layers(d, plain_attention(), plain_feed_forward());
}

void convert_qwen3(Decoder &d) {
    d.require_activation("hidden_act", {"silu"});
    require_no_window(d.config());
    d.add_dense_sizes();
    d.add_rope(d.rope(), d.head_dim());
    d.add_embeddings();
    add_layers(d, with_head_norms(plain_attention()), plain_feed_forward());
}

void convert_qwen3moe(Decoder &d) {
    const Config &config = d.config();
    d.require_activation("hidden_act", {"silu"});
    require_no_window(config);
    config.require_flag("norm_topk_prob", true, false);
    if (config.whole("decoder_sparse_step", 1) != 1) config.fail("decoder_sparse_step", "is not 1");
    if (const text::Json *const dense = config.find("mlp_only_layers"); dense && !dense->empty())
        config.fail("mlp_only_layers", "is not empty, which cannot be converted");
    d.add_dense_sizes();
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

// LFM2: gated short convolutions, and attention in the layers that layer_types says.
void convert_lfm2(Decoder &d) {
    const Config &config = d.config();
    config.require_flag("conv_bias", false, false);
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

constexpr Family kFamilies[] = {
    {"LlamaForCausalLM", "llama", convert_llama},
    {"MistralForCausalLM", "llama", convert_llama},
    {"Qwen2ForCausalLM", "qwen2", convert_qwen2},
    {"Qwen3ForCausalLM", "qwen3", convert_qwen3},
    {"Qwen3MoeForCausalLM", "qwen3moe", convert_qwen3moe},
    {"Gemma3ForCausalLM", "gemma3", convert_gemma3, kGemma3Defaults},
    {"Gemma3ForConditionalGeneration", "gemma3", convert_gemma3, kGemma3Defaults},
    {"Gemma3nForCausalLM", "gemma3n", convert_gemma3n, kGemma3nDefaults},
    {"Gemma3nForConditionalGeneration", "gemma3n", convert_gemma3n, kGemma3nDefaults},
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
