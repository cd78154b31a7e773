#include "engine/model/families.h"

#include <algorithm>
#include <array>

namespace runnel::model {

std::span<const Family> families() {
    static constexpr Family kFamilies[] = {
        {"llama", emit_llama},
        {"qwen2", emit_qwen2},
        {"qwen3", emit_qwen3},
        {"gemma", emit_gemma},
        {"gemma2", emit_gemma2},
        {"gemma3", emit_gemma3},
        {"gemma4", emit_gemma4, true},
        {"mistral3", emit_mistral3},
        {"phi3", emit_phi3},
        {"glm4", emit_glm4},
        {"smollm3", emit_smollm3},
        {"seed_oss", emit_seed_oss},
        {"olmo2", emit_olmo2},
        {"granite", emit_granite},
        {"command-r", emit_command_r},
        {"cohere2", emit_cohere2},
        {"ernie4_5", emit_ernie4_5},
        {"hunyuan-dense", emit_hunyuan_dense},
        {"exaone", emit_exaone},
        {"exaone4", emit_exaone4},
        {"internlm2", emit_internlm2},
        {"nemotron", emit_nemotron},
        {"minicpm", emit_minicpm},
        {"qwen2moe", emit_qwen2moe},
        {"qwen3moe", emit_qwen3moe},
        {"olmoe", emit_olmoe},
        {"gpt-oss", emit_gpt_oss},
        {"glm4moe", emit_glm4moe},
        {"minimax-m2", emit_minimax_m2},
        {"ernie4_5-moe", emit_ernie4_5_moe},
        {"hunyuan-moe", emit_hunyuan_moe},
        {"deepseek2", emit_deepseek2},
        {"llama4", emit_llama4},
        {"granitemoe", emit_granite},
        {"gpt2", emit_gpt2},
        {"gptneox", emit_gptneox},
        {"falcon", emit_falcon},
        {"starcoder2", emit_starcoder2},
        {"stablelm", emit_stablelm},
        {"phi2", emit_phi2},
        {"qwen35", emit_qwen35, true, true},
        {"qwen35moe", emit_qwen35, true, true},
        {"qwen3next", emit_qwen3next, true, true},
        {"lfm2", emit_lfm2, true, true},
        {"lfm2moe", emit_lfm2, true, true},
        {"mamba", emit_mamba, true, true},
        {"mamba2", emit_mamba2, true, true},
        {"jamba", emit_jamba, true, true},
        {"falcon-h1", emit_falcon_h1, true, true},
        {"granitehybrid", emit_granitehybrid, true, true},
        {"nemotron_h", emit_nemotron_h, true, true},
        {"nemotron_h_moe", emit_nemotron_h, true, true},
    };
    return kFamilies;
}

const Family *find_family(std::string_view architecture) {
    const auto all = families();
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const Family &f) { return f.architecture == architecture; });
    return found == all.end() ? nullptr : &*found;
}

std::string_view other_kind(std::string_view architecture) {
    static constexpr std::array<std::string_view, 10> kHybrids = {
        "plamo2",     "kimi-linear", "bailingmoe3", "deepseek4", "rwkv6",
        "rwkv6qwen2", "rwkv7",       "arwkv7",      "plamo3",    "minimax-01"};
    static constexpr std::array<std::string_view, 9> kEncoders = {
        "bert", "nomic-bert", "nomic-bert-moe",   "jina-bert-v2",   "modern-bert",
        "t5",   "t5encoder",  "wavtokenizer-dec", "gemma-embedding"};
    const auto among = [&](const auto &list) {
        return std::find(list.begin(), list.end(), architecture) != list.end();
    };
    if (among(kHybrids)) return "a hybrid or state-space model";
    if (among(kEncoders)) return "no language model that generates text";
    return {};
}

}  // namespace runnel::model
