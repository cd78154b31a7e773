// Written by scripts/verify-families; see verified.h.
#include "engine/model/verified.h"

namespace runnel::model {

std::span<const Verification> verifications() {
    // clang-format off
    static constexpr Verification kRows[] = {
        {"llama", "llama.cpp of October 2026", 3.4e-06, 2.2e-05, 0.9841},
        {"qwen2", "llama.cpp of October 2026", -3.5e-07, 3.3e-05, 1.0000},
        {"qwen3", "llama.cpp of October 2026", 1.9e-06, 3.1e-05, 1.0000},
        {"gemma", "llama.cpp of October 2026", 8.9e-06, 4.2e-05, 1.0000},
        {"gemma2", "llama.cpp of October 2026", 3.5e-06, 7.9e-06, 0.9841},
        {"gemma3", "llama.cpp of October 2026", 7.0e-06, 2.6e-05, 1.0000},
        {"mistral3", "llama.cpp of October 2026", 3.4e-06, 2.2e-05, 0.9841},
        {"phi3", "llama.cpp of February 2025", 4.2e-08, 2.7e-05, 1.0000},
        {"glm4", "llama.cpp of October 2026", 5.9e-06, 3.0e-05, 1.0000},
        {"smollm3", "llama.cpp of October 2026", 1.1e-05, 3.4e-05, 1.0000},
        {"seed_oss", "llama.cpp of October 2026", -1.8e-06, 2.6e-05, 1.0000},
        {"olmo2", "llama.cpp of October 2026", 8.7e-06, 4.4e-05, 1.0000},
        {"granite", "llama.cpp of October 2026", 2.5e-07, 9.0e-06, 1.0000},
        {"command-r", "llama.cpp of October 2026", 2.6e-06, 1.5e-05, 0.9841},
        {"cohere2", "llama.cpp of October 2026", 1.6e-06, 1.8e-05, 1.0000},
        {"ernie4_5", "llama.cpp of October 2026", 1.2e-05, 5.1e-05, 1.0000},
        {"exaone", "llama.cpp of October 2026", 6.5e-07, 3.4e-05, 0.9841},
        {"internlm2", "llama.cpp of October 2026", 3.4e-06, 2.2e-05, 0.9841},
        {"minicpm", "llama.cpp of October 2026", -7.9e-07, 9.4e-06, 1.0000},
        {"nemotron", "llama.cpp of October 2026", 7.7e-07, 2.8e-05, 1.0000},
        {"starcoder2", "llama.cpp of October 2026", 1.9e-06, 3.1e-05, 1.0000},
        {"gpt2", "llama.cpp of October 2026", 2.1e-06, 2.3e-05, 1.0000},
        {"gptneox", "llama.cpp of October 2026", 3.6e-06, 2.5e-05, 1.0000},
        {"gptneox-sequential", "llama.cpp of October 2026", 3.9e-06, 2.6e-05, 1.0000},
        {"phi2", "llama.cpp of October 2026", 4.3e-07, 2.6e-05, 1.0000},
        {"falcon", "llama.cpp of October 2026", 4.4e-07, 3.1e-05, 1.0000},
        {"falcon-40b", "llama.cpp of October 2026", 3.8e-06, 3.0e-05, 1.0000},
        {"stablelm", "llama.cpp of October 2026", 5.5e-07, 3.0e-05, 1.0000},
        {"stablelm-12b", "llama.cpp of October 2026", 6.9e-07, 2.1e-05, 0.9841},
        {"llama, linear RoPE", "llama.cpp of October 2026", 1.7e-06, 3.2e-05, 1.0000},
        {"llama, YaRN", "llama.cpp of October 2026", 3.2e-06, 2.7e-05, 1.0000},
        {"llama, llama3 RoPE factors", "llama.cpp of October 2026", 2.1e-06, 2.5e-05, 1.0000},
        {"llama, biases", "llama.cpp of October 2026", 1.2e-06, 3.3e-05, 1.0000},
        {"qwen3, YaRN", "llama.cpp of October 2026", 1.6e-06, 2.9e-05, 1.0000},
        {"gemma2, 27B", "llama.cpp of October 2026", 4.1e-06, 8.2e-06, 1.0000},
        {"gemma3, linear RoPE", "llama.cpp of October 2026", 4.9e-06, 2.9e-05, 1.0000},
        {"phi3, LongRoPE short", "llama.cpp of February 2025", 2.4e-07, 2.9e-05, 1.0000},
        {"phi3, LongRoPE long", "llama.cpp of February 2025", -5.9e-08, 2.5e-05, 1.0000},
        {"minicpm, LongRoPE", "llama.cpp of February 2025", -6.5e-08, 9.1e-06, 1.0000},
        {"mixtral", "llama.cpp of October 2026", 3.0e-06, 2.9e-05, 1.0000},
        {"qwen2moe", "llama.cpp of October 2026", 2.3e-06, 3.0e-05, 1.0000},
        {"olmoe", "llama.cpp of October 2026", 8.0e-07, 2.8e-05, 1.0000},
        {"gpt-oss", "llama.cpp of October 2026", 2.6e-06, 3.0e-05, 1.0000},
        {"granitemoe", "llama.cpp of October 2026", 7.4e-07, 1.3e-05, 1.0000},
        {"ernie4_5-moe", "llama.cpp of October 2026", 2.7e-06, 3.6e-05, 1.0000},
        {"olmo3", "llama.cpp of October 2026", 3.9e-06, 3.9e-05, 1.0000},
        {"hunyuan-dense", "llama.cpp of October 2026", 1.1e-05, 3.3e-05, 1.0000},
        {"exaone4", "llama.cpp of October 2026", 8.0e-06, 3.5e-05, 1.0000},
        {"exaone4-32b", "llama.cpp of October 2026", 8.1e-06, 3.2e-05, 1.0000},
        {"qwen3moe", "llama.cpp of October 2026", 3.8e-06, 3.3e-05, 1.0000},
        {"glm4moe", "llama.cpp of October 2026", 8.4e-07, 2.2e-05, 1.0000},
        {"minimax-m2", "llama.cpp of October 2026", -7.9e-07, 2.3e-05, 1.0000},
        {"hunyuan-moe", "llama.cpp of October 2026", 3.5e-06, 2.8e-05, 1.0000},
        {"deepseek2", "llama.cpp of October 2026", 4.2e-06, 3.3e-05, 0.9841},
        {"deepseek2-joint", "llama.cpp of October 2026", 3.1e-06, 2.7e-05, 1.0000},
        {"mistral3, YaRN", "llama.cpp of October 2026", 2.6e-06, 2.3e-05, 1.0000},
    };
    // clang-format on
    return kRows;
}

}  // namespace runnel::model
