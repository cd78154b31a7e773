#include "engine/model/families.h"

#include <algorithm>

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
        {"arcee", emit_arcee},
        {"xverse", emit_adjacent},
        {"chatglm", emit_adjacent},
        {"orion", emit_orion},
        {"qwen2vl", emit_qwen2},
        {"qwen3vl", emit_qwen3},
        {"qwen3vlmoe", emit_qwen3moe},
        {"deci", emit_deci, true, true},
        {"bailingmoe2", emit_bailingmoe2},
        {"hy_v3", emit_bailingmoe2},
        {"dots1", emit_dots1},
        {"exaone-moe", emit_exaone_moe},
        {"granite_swa", emit_granite_swa},
        {"cohere2moe", emit_cohere2moe},
        {"minicpm3", emit_minicpm3},
        {"afmoe", emit_afmoe},
        {"muse-glimmer", emit_muse_glimmer},
    };
    return kFamilies;
}

const Family *find_family(std::string_view architecture) {
    const auto all = families();
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const Family &f) { return f.architecture == architecture; });
    return found == all.end() ? nullptr : &*found;
}

}  // namespace runnel::model
