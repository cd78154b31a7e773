#include "tests/support/model_families.h"

#include <algorithm>

namespace runnel::testing {
namespace {

using HeadNorm = FamilyFiles::HeadNorm;
using Biases = FamilyFiles::Biases;

const std::vector<std::string> kSandwich = {"attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"};
const std::vector<std::string> kPost = {"post_attention_norm", "post_ffw_norm"};
constexpr uint32_t kWindow = 40;  // far shorter than the texts that models are tested with

FamilyFiles gemma4(const std::string &name, const Gemma4Files &files) {
    return {.name = name,
            .arch = "gemma4",
            .norms = kSandwich,
            .tied = true,
            .gemma4 = files,
            .branch_gain = 10,
            .keys = {{"attention.sliding_window", kWindow}, {"final_logit_softcapping", 3.0f}}};
}

void add_experts(std::vector<FamilyFiles> &list) {
    using Shared = ExpertFiles::Shared;
    const std::vector<std::string> other_name = {"attn_norm", "post_attention_norm"};
    const auto add = [&](FamilyFiles family, const ExpertFiles &experts) {
        family.experts = experts;
        list.push_back(std::move(family));
    };
    add({.name = "mixtral", .arch = "llama"}, {.width_key = false});
    add({.name = "qwen2moe", .arch = "qwen2moe", .biases = Biases::Qkv}, {.shared = Shared::Gated});
    add({.name = "qwen3moe", .arch = "qwen3moe", .head_norm = HeadNorm::PerHead}, {});
    add({.name = "olmoe", .arch = "olmoe", .head_norm = HeadNorm::WholeRow}, {.width_key = false});
    add({.name = "gpt-oss",
         .arch = "gpt-oss",
         .norms = other_name,
         .biases = Biases::All,
         .sinks = true,
         .keys = {{"attention.sliding_window", kWindow}}},
        {.biases = true});
    const FamilyFiles::Key sigmoid = {"expert_gating_func", uint32_t{2}};
    FamilyFiles glm{.name = "glm4moe",
                    .arch = "glm4moe",
                    .norms = other_name,
                    .head_norm = HeadNorm::PerHead,
                    .biases = Biases::Qkv,
                    .rope_divisor = 2,
                    .keys = {sigmoid,
                             {"expert_weights_scale", 1.5f},
                             {"expert_weights_norm", true},
                             {"expert_shared_count", uint32_t{1}}}};
    add(glm, {.shared = Shared::Plain, .selection_bias = true});
    add({.name = "granitemoe",
         .arch = "granitemoe",
         .keys = {{"embedding_scale", 3.0f},
                  {"residual_scale", 0.4f},
                  {"logit_scale", 1.5f},
                  {"attention.scale", 0.25f}}},
        {.width_key = false});
    add({.name = "minimax-m2",
         .arch = "minimax-m2",
         .head_norm = HeadNorm::WholeRow,
         .rope_divisor = 2,
         .keys = {sigmoid}},
        {.selection_bias = true});
    add({.name = "ernie4_5-moe",
         .arch = "ernie4_5-moe",
         .keys = {{"interleave_moe_layer_step", uint32_t{1}}}},
        {.shared = Shared::Plain, .selection_bias = true});
    add({.name = "hunyuan-moe", .arch = "hunyuan-moe", .head_norm = HeadNorm::PerHead},
        {.shared = Shared::Plain});
    FamilyFiles deepseek{.name = "deepseek2-lite",
                         .arch = "deepseek2",
                         .latent = LatentFiles{.low_rank_q = false, .joint = true},
                         .keys = {{"expert_weights_scale", 1.0f},
                                  {"rope.scaling.yarn_log_multiplier", 0.07f},
                                  {"expert_shared_count", uint32_t{1}}}};
    add(deepseek, {.shared = Shared::Plain});
    deepseek.name = "deepseek2", deepseek.latent = LatentFiles{};
    deepseek.keys = {sigmoid,
                     {"expert_weights_scale", 2.5f},
                     {"rope.scaling.yarn_log_multiplier", 0.07f},
                     {"expert_weights_norm", true},
                     {"expert_shared_count", uint32_t{1}}};
    add(deepseek, {.shared = Shared::Plain, .selection_bias = true});
    deepseek.name = "deepseek2-joint", deepseek.latent->joint = true;
    add(deepseek, {.shared = Shared::Plain, .selection_bias = true});
    add({.name = "deepseek4",
         .arch = "deepseek4",
         .rope_divisor = 2,
         .sinks = true,
         .deepseek4 = DeepSeek4Files{},
         .keys = {{"attention.sliding_window", kWindow},
                  {"expert_gating_func", uint32_t{4}},
                  {"expert_weights_scale", 1.5f},
                  {"expert_weights_norm", true}},
         .keys_by_layer = {{"deepseek4.swiglu_clamp_exp", 1.5f}, {"deepseek4.swiglu_clamp_shexp", 1.0f}}},
        {.shared = Shared::Plain, .selection_bias = true, .shared_count = true});
    add({.name = "llama4", .arch = "llama4", .keys = {{"interleave_moe_layer_step", uint32_t{2}}}},
        {.shared = Shared::Plain});
    add(gemma4("gemma4-26b", {.keys_are_values = true}), {});
}

// Recurrent layers, alone or with attention.
void add_recurrent(std::vector<FamilyFiles> &list) {
    using Mixer = RecurrentFiles::Mixer;
    using Shared = ExpertFiles::Shared;
    const auto add = [&](FamilyFiles family, const RecurrentFiles &files,
                         std::optional<ExpertFiles> experts = {}) {
        family.recurrent = files;
        family.experts = experts;
        list.push_back(std::move(family));
    };
    FamilyFiles qwen{.name = "qwen35",
                     .arch = "qwen35",
                     .norms = {"attn_norm", "post_attention_norm"},
                     .head_norm = HeadNorm::PerHead,
                     .rope_divisor = 2,
                     .keys = {{"rope.dimension_sections", std::vector<int32_t>{2, 1, 1, 0}}}};
    RecurrentFiles delta{.mixer = Mixer::GatedDelta, .gated_attention = true, .interval_key = true};
    add(qwen, delta);
    qwen.name = qwen.arch = "qwen35moe";
    add(qwen, delta, ExpertFiles{.shared = Shared::Gated});
    FamilyFiles qwen4 = qwen;
    qwen4.name = qwen4.arch = "qwen4exp", qwen4.norms = {}, qwen4.qwen4.emplace();
    RecurrentFiles without_norm = delta;
    without_norm.final_norm = "";
    add(qwen4, without_norm, ExpertFiles{.shared = Shared::Gated});
    qwen.name = qwen.arch = "qwen3next", qwen.keys.clear();
    delta.separate_gates = false;
    add(qwen, delta, ExpertFiles{.shared = Shared::Gated});
    qwen.name = "qwen3next-old", delta.interleaved = true;
    add(qwen, delta, ExpertFiles{.shared = Shared::Gated});
    FamilyFiles lfm{.name = "lfm2", .arch = "lfm2", .head_norm = HeadNorm::PerHead, .tied = true};
    const RecurrentFiles convolved{.mixer = Mixer::ShortConv, .final_norm = "token_embd_norm"};
    add(lfm, convolved);
    lfm.name = lfm.arch = "lfm2moe", lfm.keys = {{"expert_gating_func", uint32_t{2}}};
    add(lfm, convolved, ExpertFiles{.selection_bias = true});
    FamilyFiles plain{.name = "mamba", .arch = "mamba", .norms = {"attn_norm"}, .rope = false};
    add(plain, {.mixer = Mixer::Mamba, .period = 0, .feed_forward = false});
    plain.name = "falcon-mamba", plain.keys = {{"ssm.dt_b_c_rms", true}};
    add(plain, {.mixer = Mixer::Mamba, .period = 0, .feed_forward = false});
    plain.name = plain.arch = "mamba2", plain.keys.clear();
    add(plain, {.mixer = Mixer::Mamba2, .period = 0, .feed_forward = false});
    add({.name = "jamba", .arch = "jamba", .rope = false},
        {.mixer = Mixer::Mamba, .normed_inputs = true, .mixed_experts = true},
        ExpertFiles{.width_key = false});
    add({.name = "falcon-h1", .arch = "falcon-h1", .norms = {"attn_norm"}},
        {.mixer = Mixer::Mamba2, .attention_too = true});
    FamilyFiles granite{.name = "granitehybrid",
                        .arch = "granitehybrid",
                        .keys = {{"embedding_scale", 3.0f},
                                 {"residual_scale", 0.4f},
                                 {"logit_scale", 1.5f},
                                 {"attention.scale", 0.25f},
                                 {"rope.scaling.finetuned", false}}};
    add(granite, {.mixer = Mixer::Mamba2});
    granite.name = "granitehybrid-moe";
    granite.keys.back().second = true;
    add(granite, {.mixer = Mixer::Mamba2}, ExpertFiles{.shared = Shared::Plain, .width_key = false});
    FamilyFiles nemotron{.name = "nemotron_h",
                         .arch = "nemotron_h",
                         .norms = {"attn_norm"},
                         .layer_norm = true,
                         .gated = false,
                         .rope = false};
    const RecurrentFiles alternating{.mixer = Mixer::Mamba2, .alternating = true};
    add(nemotron, alternating);
    nemotron.name = nemotron.arch = "nemotron_h_moe";
    nemotron.keys = {{"expert_weights_norm", true},
                     {"expert_weights_scale", 1.5f},
                     {"expert_gating_func", uint32_t{2}},
                     {"expert_shared_count", uint32_t{1}}};
    add(nemotron, alternating, ExpertFiles{.shared = Shared::Plain, .selection_bias = true});
    add({.name = "plamo2",
         .arch = "plamo2",
         .norms = kSandwich,
         .bare_post_norms = true,
         .head_norm = HeadNorm::OwnWeights,
         .fused_qkv = true,
         .fused_gate_up = true,
         .rope_divisor = 2},
        {.mixer = Mixer::Plamo2});
    add({.name = "minimax-01", .arch = "minimax-01", .rope_divisor = 2, .keys = {{"residual_scale", 0.9f}}},
        {.mixer = Mixer::Lightning, .interval_key = true}, ExpertFiles{.width_key = false});
    add({.name = "rwkv7",
         .arch = "rwkv7",
         .norms = {"attn_norm", "attn_norm_2"},
         .layer_norm = true,
         .norm_bias = true,
         .rope = false,
         .embedding_norm = true},
        {.mixer = Mixer::Rwkv7, .period = 0, .channel_mix = true});
    FamilyFiles rwkv6 = list.back();
    rwkv6.name = rwkv6.arch = "rwkv6";
    add(rwkv6, {.mixer = Mixer::Rwkv6, .period = 0, .channel_mix = true});
    rwkv6.name = "rwkv6-old";
    add(rwkv6, {.mixer = Mixer::Rwkv6, .period = 0, .channel_mix = true, .lerps_apart = true});
    add({.name = "rwkv6qwen2", .arch = "rwkv6qwen2", .rope = false}, {.mixer = Mixer::Rwkv6, .period = 0});
    FamilyFiles arwkv{.name = "arwkv7", .arch = "arwkv7", .rope = false};
    add(arwkv, {.mixer = Mixer::Rwkv7, .period = 0});
    arwkv.name = "arwkv7-gateless";
    add(arwkv, {.mixer = Mixer::Rwkv7, .period = 0, .gate = false, .norm_of_heads = false});
    FamilyFiles kimi{.name = "kimi-linear",
                     .arch = "kimi-linear",
                     .latent = LatentFiles{.low_rank_q = false},
                     .keys = {{"expert_gating_func", uint32_t{2}},
                              {"expert_weights_scale", 1.5f},
                              {"expert_weights_norm", true}}};
    const ExpertFiles with_shared{.shared = Shared::Plain, .selection_bias = true, .shared_count = true};
    add(kimi, {.mixer = Mixer::KimiDelta}, with_shared);
    kimi.name = kimi.arch = "bailingmoe3", kimi.latent = LatentFiles{.head_gates = true};
    kimi.keys.emplace_back("kda.gate_lower_bound", -5.0f);
    kimi.keys_by_layer = {{"bailingmoe3.swiglu_clamp_exp", 0.25f}, {"bailingmoe3.swiglu_clamp_shexp", 0.3f}};
    add(kimi, {.mixer = Mixer::KimiDelta, .low_rank = false, .rate = 1.5f}, with_shared);
}

// Biases by distance (ALiBi).
void add_alibi(std::vector<FamilyFiles> &list) {
    const FamilyFiles::Key alibi = {"attention.max_alibi_bias", 8.0f};
    FamilyFiles bloom{.name = "bloom",
                      .arch = "bloom",
                      .layer_norm = true,
                      .norm_bias = true,
                      .biases = Biases::All,
                      .fused_qkv = true,
                      .gated = false,
                      .rope = false};
    FamilyFiles jais = bloom, mpt = bloom;
    bloom.embedding_norm = true;
    list.push_back(bloom);
    list.push_back({.name = "refact", .arch = "refact", .rope = false});
    jais.name = jais.arch = "jais", jais.gated = true, jais.keys = {alibi};
    list.push_back(jais);
    mpt.name = "mpt-positions", mpt.arch = "mpt", mpt.positions = true;
    list.push_back(mpt);
    list.push_back({.name = "mpt",
                    .arch = "mpt",
                    .layer_norm = true,
                    .fused_qkv = true,
                    .gated = false,
                    .tied = true,
                    .rope = false,
                    .keys = {alibi, {"attention.clamp_kqv", 0.8f}}});
    list.push_back({.name = "baichuan-13b", .arch = "baichuan", .rope = false});
}

// Dense families with few differences from others.
void add_dense(std::vector<FamilyFiles> &list) {
    const FamilyFiles::Key sections = {"rope.dimension_sections", std::vector<int32_t>{2, 1, 1, 0}};
    const auto add = [&](const std::string &name, FamilyFiles family) {
        family.name = name;
        if (family.arch.empty()) family.arch = name;
        list.push_back(std::move(family));
    };
    add("glm4-axes", {.arch = "glm4",
                      .norms = kSandwich,
                      .biases = Biases::Qkv,
                      .fused_gate_up = true,
                      .rope_divisor = 2,
                      .keys = {{"rope.dimension_sections", std::vector<int32_t>{1, 1, 2, 0}}}});
    add("arcee", {.gated = false});
    add("xverse", {});
    add("chatglm", {.biases = Biases::Qkv, .fused_qkv = true, .fused_gate_up = true, .rope_divisor = 2});
    add("paddleocr", {.tied = true, .keys = {sections}});
    add("pangu-embedded", {.biases = Biases::Qkv, .attn_output_bias = true});
    add("cogvlm", {.fused_qkv = true, .image_experts = true});
    add("baichuan", {});
    add("bitnet", {.tied = true, .inner_norms = true});
    add("orion", {.layer_norm = true, .norm_bias = true});
    add("qwen", {.biases = Biases::Qkv, .fused_qkv = true, .double_ff_key = true});
    add("qwen2vl", {.biases = Biases::Qkv, .keys = {sections}});
    add("qwen3vl", {.head_norm = HeadNorm::PerHead,
                    .keys = {{"rope.dimension_sections", std::vector<int32_t>{3, 3, 2, 0}}}});
    add("hunyuan_vl",
        {.head_norm = HeadNorm::PerHead,
         .tied = true,
         .keys = {sections, {"rope.scaling.alpha", 50.0f}, {"rope.scaling.type", std::string("none")}}});
    add("plamo", {.norms = {"attn_norm"}});
    add("maincoder", {.head_norm = HeadNorm::PerHead});
    add("jais2", {.layer_norm = true, .norm_bias = true, .biases = Biases::All, .gated = false});
    add("starcoder", {.layer_norm = true,
                      .norm_bias = true,
                      .biases = Biases::All,
                      .fused_qkv = true,
                      .gated = false,
                      .positions = true,
                      .rope = false});
    add("codeshell",
        {.layer_norm = true, .norm_bias = true, .biases = Biases::All, .fused_qkv = true, .gated = false});
    add("deci", {.layer_sizes = [](const LayerSizes &all, int64_t layer) -> LayerSizes {
            if (layer == 1) return {0, 0, all.ff};
            if (layer == 2) return {all.heads, 0, all.ff / 2};
            if (layer == 3) return {0, 0, 0};
            return {all.heads, layer % 2 == 0 ? all.kv_heads : all.heads, all.ff};
        }});
    add("openelm", {.head_norm = HeadNorm::PerHead,
                    .fused_qkv = true,
                    .tied = true,
                    .layer_sizes = [](const LayerSizes &all, int64_t layer) -> LayerSizes {
                        return {all.heads, layer % 2 == 0 ? all.kv_heads : all.heads,
                                layer % 3 == 0 ? all.ff : 2 * all.ff};
                    }});
    add("minicpm3", {.latent = LatentFiles{.joint = true}, .branch_gain = 8});
    add("plm", {.gated = false, .tied = true, .latent = LatentFiles{.low_rank_q = false, .joint = true}});
    add("plamo3", {.norms = kSandwich,
                   .bare_post_norms = true,
                   .head_norm = HeadNorm::PerHead,
                   .fused_qkv = true,
                   .fused_gate_up = true,
                   .tied = true,
                   .keys = {{"attention.sliding_window", kWindow},
                            {"attention.sliding_window_pattern", uint32_t{3}},
                            {"rope.freq_base_swa", 5000.0f}}});
    add("spark2_5", {.fused_qkv = true,
                     .tied = true,
                     .rope_divisor = 2,
                     .head_gates = true,
                     .wide_window_rope = true,
                     .window_period = 3,
                     .keys = {{"attention.sliding_window", kWindow}, {"rope.freq_base_swa", 5000.0f}}});
    add("nanbeige", {.keys = {{"num_loops", uint32_t{3}}, {"skip_loop_final_norm", false}}});
    add("nanbeige-unnormed",
        {.arch = "nanbeige", .keys = {{"num_loops", uint32_t{2}}, {"skip_loop_final_norm", true}}});
    add("talkie", {.norms = {},
                   .head_norm = HeadNorm::Gain,
                   .norms_have_weights = false,
                   .layer_factors = true,
                   .keys = {{"logit_scale", 0.7f}}});
    add("olmo", {.norms = {},
                 .layer_norm = true,
                 .norms_have_weights = false,
                 .keys = {{"attention.clamp_kqv", 0.8f}}});
    add("apertus",
        {.head_norm = HeadNorm::PerHead,
         .gated = false,
         .keys_by_layer = {
             {"xielu.alpha_n", 0.3f}, {"xielu.alpha_p", 0.4f}, {"xielu.beta", 0.5f}, {"xielu.eps", -1e-6f}}});
    add("muse-glimmer", {.norms = kSandwich,
                         .head_norm = HeadNorm::PerHead,
                         .attention_gate = true,
                         .keys = {{"attention.sliding_window", kWindow},
                                  {"rope.freq_base_swa", 5000.0f},
                                  {"logit_scale", 0.7f},
                                  {"final_logit_softcapping", 5.0f}}});
}

void add_mixtures(std::vector<FamilyFiles> &list) {
    using Shared = ExpertFiles::Shared;
    const auto add = [&](const std::string &name, FamilyFiles family, const ExpertFiles &experts) {
        family.name = name;
        if (family.arch.empty()) family.arch = name;
        family.experts = experts;
        list.push_back(std::move(family));
    };
    const FamilyFiles::Key sigmoid = {"expert_gating_func", uint32_t{2}},
                           scale = {"expert_weights_scale", 1.5f}, normed = {"expert_weights_norm", true},
                           window = {"attention.sliding_window", kWindow};
    const ExpertFiles with_shared{.shared = Shared::Plain, .shared_count = true},
        chosen{.shared = Shared::Plain, .selection_bias = true, .shared_count = true};
    add("qwen3vlmoe",
        {.head_norm = HeadNorm::PerHead,
         .keys = {{"rope.dimension_sections", std::vector<int32_t>{3, 3, 2, 0}}}},
        {});
    add("deepseek", {.keys = {scale}}, with_shared);
    add("deepseek2-ocr", {.keys = {scale}}, with_shared);
    add("bailingmoe", {.keys = {scale, normed}}, with_shared);
    add("bailingmoe2",
        {.head_norm = HeadNorm::PerHead,
         .fused_qkv = true,
         .rope_divisor = 2,
         .keys = {sigmoid, scale, normed}},
        chosen);
    ExpertFiles bare = chosen;
    bare.bare_name = true, bare.shared_count = false;
    add("hy_v3", {.head_norm = HeadNorm::PerHead, .keys = {sigmoid, scale, normed}}, bare);
    add("dots1", {.head_norm = HeadNorm::PerHead, .keys = {sigmoid, scale, normed}}, chosen);
    add("exaone-moe", {.head_norm = HeadNorm::PerHead, .keys = {window, sigmoid, scale, normed}}, chosen);
    add("mellum", {.head_norm = HeadNorm::PerHead, .keys = {window}}, {});
    add("granite_swa",
        {.sinks = true,
         .window_period = 3,
         .rope_period = 2,
         .keys = {window,
                  {"embedding_scale", 3.0f},
                  {"residual_scale", 0.4f},
                  {"logit_scale", 1.5f},
                  {"attention.scale", 0.25f}}},
        {.shared = Shared::Merged, .width_key = false});
    add("mimo2",
        {.rope_divisor = 2,
         .sinks = true,
         .narrow_values = true,
         .window_period = 3,
         .layer_sizes = [](const LayerSizes &all, int64_t layer) -> LayerSizes {
             return {all.heads, layer % 3 == 2 ? all.kv_heads : all.heads, all.ff};
         },
         .keys = {window, sigmoid, {"rope.freq_base_swa", 5000.0f}, {"attention.value_scale", 0.7f}}},
        {.selection_bias = true});
    add("cohere2moe",
        {.norms = {"attn_norm"},
         .layer_norm = true,
         .tied = true,
         .keys = {window, sigmoid, scale, normed, {"logit_scale", 0.7f}}},
        with_shared);
    add("dbrx",
        {.norms = {"attn_norm", "attn_output_norm"},
         .layer_norm = true,
         .fused_qkv = true,
         .keys = {{"attention.clamp_kqv", 0.8f}}},
        {.width_key = false});
    add("phimoe", {.norm_bias = true, .biases = Biases::All, .output_bias = true}, {.width_key = false});
    FamilyFiles laguna{.head_norm = HeadNorm::PerHead,
                       .rope_divisor = 2,
                       .head_gates = true,
                       .wide_window_rope = true,
                       .layer_sizes = [](const LayerSizes &all, int64_t layer) -> LayerSizes {
                           return {layer % 4 == 0 ? all.heads : 2 * all.heads, all.kv_heads, all.ff};
                       },
                       .keys = {window, sigmoid, scale, normed, {"rope.freq_base_swa", 5000.0f}}};
    add("laguna", laguna, chosen);
    laguna.head_gates = laguna.wide_window_rope = false, laguna.attention_gate = true;
    laguna.layer_sizes = nullptr, laguna.keys = {sigmoid, scale, normed}, laguna.arch = "laguna";
    add("laguna-m", laguna, chosen);
    add("maple",
        {.head_norm = HeadNorm::PerHead,
         .window_period = 3,
         .keys = {window, {"rope.freq_base_swa", 5000.0f}},
         .keys_by_layer = {{"maple.swiglu_clamp_exp", 0.25f}}},
        {});
    add("step35",
        {.head_norm = HeadNorm::PerHead,
         .head_gates = true,
         .window_period = 3,
         .layer_sizes = [](const LayerSizes &all, int64_t layer) -> LayerSizes {
             return {layer % 3 == 2 ? all.heads : 2 * all.heads, all.kv_heads, all.ff};
         },
         .keys = {window, sigmoid, scale, normed, {"rope.freq_base_swa", 5000.0f}},
         .keys_by_layer = {{"step35.swiglu_clamp_exp", 0.25f}, {"step35.swiglu_clamp_shexp", 0.3f}}},
        chosen);
    add("minimax-m3",
        {.head_norm = HeadNorm::PerHead,
         .rope_divisor = 2,
         .block_indexer = true,
         .keys = {sigmoid, scale, normed}},
        chosen);
    add("smallthinker", {.keys = {window, sigmoid}}, {});
    add("grok",
        {.norms = {"attn_norm", "attn_output_norm", "ffn_norm", "layer_output_norm"},
         .keys = {{"attention.output_scale", 0.4f},
                  {"attn_logit_softcapping", 2.0f},
                  {"embedding_scale", 3.0f},
                  {"logit_scale", 0.7f}}},
        {});
    add("arctic", {}, {.width_key = false, .dense_too = true});
    add("mistral4",
        {.latent = LatentFiles{},
         .keys = {scale,
                  normed,
                  {"attention.temperature_scale", 0.3f},
                  {"attention.temperature_length", uint32_t{24}}}},
        with_shared);
    add("deepseek32", {.latent = LatentFiles{.indexer = true}, .keys = {sigmoid, scale, normed}}, chosen);
    add("glm-dsa", {.latent = LatentFiles{.indexer = true}, .keys = {scale, normed}}, chosen);
    add("afmoe",
        {.norms = kSandwich,
         .head_norm = HeadNorm::PerHead,
         .attention_gate = true,
         .branch_gain = 8,
         .keys = {window, sigmoid, scale, normed}},
        chosen);
}

std::vector<FamilyFiles> make_list() {
    std::vector<FamilyFiles> list = {
        {.name = "llama", .arch = "llama"},
        {.name = "qwen2", .arch = "qwen2", .biases = Biases::Qkv},
        {.name = "qwen3", .arch = "qwen3", .head_norm = HeadNorm::PerHead},
        {.name = "gemma", .arch = "gemma", .tied = true, .branch_gain = 10},
        {.name = "gemma2",
         .arch = "gemma2",
         .norms = kSandwich,
         .tied = true,
         .branch_gain = 10,
         .keys = {{"attention.sliding_window", kWindow},
                  {"attn_logit_softcapping", 2.0f},
                  {"final_logit_softcapping", 3.0f}}},
        {.name = "gemma3",
         .arch = "gemma3",
         .norms = kSandwich,
         .head_norm = HeadNorm::PerHead,
         .tied = true,
         .branch_gain = 10,
         .keys = {{"attention.sliding_window", kWindow}}},
        {.name = "gemma3n",
         .arch = "gemma3n",
         .norms = kSandwich,
         .tied = true,
         .gemma3n = Gemma3nFiles{},
         // Layers scale the stream down: with large branches, rounding errors would grow from layer to layer.
         .branch_gain = 0.5f,
         .keys = {{"attention.sliding_window", kWindow},
                  {"rope.freq_base_swa", 5000.0f},
                  {"altup.active_idx", uint32_t{0}},
                  {"altup.num_inputs", uint32_t{4}}}},
        {.name = "mistral3",
         .arch = "mistral3",
         .keys = {{"attention.temperature_scale", 0.3f}, {"rope.scaling.yarn_log_multiplier", 1.0f}}},
        {.name = "phi3",
         .arch = "phi3",
         .fused_qkv = true,
         .fused_gate_up = true,
         .keys = {{"attention.sliding_window", kWindow}}},
        {.name = "glm4",
         .arch = "glm4",
         .norms = kSandwich,
         .biases = Biases::Qkv,
         .fused_gate_up = true,
         .rope_divisor = 2},
        {.name = "smollm3", .arch = "smollm3", .tied = true},
        {.name = "seed_oss",
         .arch = "seed_oss",
         .norms = {"attn_norm", "post_attention_norm"},
         .biases = Biases::Qkv},
        {.name = "olmo2", .arch = "olmo2", .norms = kPost, .head_norm = HeadNorm::WholeRow},
        {.name = "olmo3",
         .arch = "olmo2",
         .norms = kPost,
         .head_norm = HeadNorm::WholeRow,
         .keys = {{"attention.sliding_window", kWindow}}},
        {.name = "granite",
         .arch = "granite",
         .keys = {{"embedding_scale", 3.0f},
                  {"residual_scale", 0.4f},
                  {"logit_scale", 1.5f},
                  {"attention.scale", 0.25f}}},
        {.name = "command-r",
         .arch = "command-r",
         .norms = {"attn_norm"},
         .layer_norm = true,
         .tied = true,
         .keys = {{"logit_scale", 0.7f}}},
        {.name = "cohere2",
         .arch = "cohere2",
         .norms = {"attn_norm"},
         .layer_norm = true,
         .tied = true,
         .keys = {{"logit_scale", 0.7f}, {"attention.sliding_window", kWindow}}},
        {.name = "ernie4_5", .arch = "ernie4_5", .tied = true},
        {.name = "hunyuan-dense", .arch = "hunyuan-dense", .head_norm = HeadNorm::PerHead, .tied = true},
        {.name = "exaone", .arch = "exaone"},
        {.name = "exaone4", .arch = "exaone4", .norms = kPost, .head_norm = HeadNorm::PerHead},
        {.name = "exaone4-32b",
         .arch = "exaone4",
         .norms = kPost,
         .head_norm = HeadNorm::PerHead,
         .keys = {{"attention.sliding_window", kWindow}}},
        {.name = "internlm2", .arch = "internlm2"},
        {.name = "minicpm",
         .arch = "minicpm",
         .keys = {{"embedding_scale", 3.0f}, {"residual_scale", 0.4f}, {"logit_scale", 1.5f}}},
    };
    // The generation of layer norms with biases, and of feed-forward networks without a gate.
    FamilyFiles old{.name = "nemotron",
                    .arch = "nemotron",
                    .layer_norm = true,
                    .norm_bias = true,
                    .gated = false,
                    .rope_divisor = 2};
    list.push_back(old);
    old.name = old.arch = "starcoder2", old.biases = Biases::All, old.rope_divisor = 1;
    list.push_back(old);
    old.name = old.arch = "gpt2", old.fused_qkv = true, old.positions = true, old.rope = false;
    list.push_back(old);
    old.positions = false, old.rope = true, old.rope_divisor = 4;
    old.name = old.arch = "gptneox", old.keys = {{"use_parallel_residual", true}};
    list.push_back(old);
    old.name = "gptneox-sequential", old.keys = {{"use_parallel_residual", false}};
    list.push_back(old);
    old.keys.clear();
    old.name = old.arch = "phi2", old.norms = {"attn_norm"}, old.output_bias = true, old.rope_divisor = 2;
    list.push_back(old);
    old.name = old.arch = "falcon", old.biases = Biases::None, old.output_bias = false, old.rope_divisor = 1;
    list.push_back(old);
    old.name = "falcon-40b", old.norms = {"attn_norm", "attn_norm_2"};
    list.push_back(old);
    list.push_back({.name = "stablelm",
                    .arch = "stablelm",
                    .layer_norm = true,
                    .norm_bias = true,
                    .biases = Biases::Qkv,
                    .rope_divisor = 4,
                    .keys = {{"use_parallel_residual", true}}});
    list.push_back({.name = "stablelm-12b",
                    .arch = "stablelm",
                    .norms = {"attn_norm"},
                    .layer_norm = true,
                    .norm_bias = true,
                    .head_norm = HeadNorm::OwnWeights,
                    .rope_divisor = 4,
                    .keys = {{"use_parallel_residual", true}}});
    list.push_back(gemma4("gemma4", {.period = 2, .shared_kv = 3, .wide_shared = true, .own_embedding = 24}));
    list.push_back(gemma4("gemma4-31b", {.keys_are_values = true}));
    add_experts(list);
    add_recurrent(list);
    add_dense(list);
    add_alibi(list);
    add_mixtures(list);
    return list;
}

}  // namespace

const std::vector<FamilyFiles> &family_files() {
    static const std::vector<FamilyFiles> list = make_list();
    return list;
}

const FamilyFiles *find_family_files(const std::string &name) {
    const std::vector<FamilyFiles> &all = family_files();
    const auto found = std::find_if(all.begin(), all.end(), [&](const auto &f) { return f.name == name; });
    return found == all.end() ? nullptr : &*found;
}

}  // namespace runnel::testing
