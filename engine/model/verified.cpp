// Written by scripts/verify-families; see verified.h.
#include "engine/model/verified.h"

namespace runnel::model {

std::span<const Verification> verifications() {
    // clang-format off
    static constexpr Verification kRows[] = {
        {"llama", "llama.cpp 2026-10", 3.4e-06, 2.2e-05, 0.9841},
        {"qwen2", "llama.cpp 2026-10", -3.5e-07, 3.3e-05, 1.0000},
        {"qwen3", "llama.cpp 2026-10", 1.9e-06, 3.1e-05, 1.0000},
        {"gemma", "llama.cpp 2026-10", 8.9e-06, 4.2e-05, 1.0000},
        {"gemma2", "llama.cpp 2026-10", 3.5e-06, 7.9e-06, 0.9841},
        {"gemma3", "llama.cpp 2026-10", 7.0e-06, 2.6e-05, 1.0000},
        {"mistral3", "llama.cpp 2026-10", 3.4e-06, 2.2e-05, 0.9841},
        {"phi3", "llama.cpp 2025-02", 4.2e-08, 2.7e-05, 1.0000},
        {"glm4", "llama.cpp 2026-10", 5.9e-06, 3.0e-05, 1.0000},
        {"smollm3", "llama.cpp 2026-10", 1.1e-05, 3.4e-05, 1.0000},
        {"seed_oss", "llama.cpp 2026-10", -1.8e-06, 2.6e-05, 1.0000},
        {"olmo2", "llama.cpp 2026-10", 8.7e-06, 4.4e-05, 1.0000},
        {"granite", "llama.cpp 2026-10", 2.5e-07, 9.0e-06, 1.0000},
        {"command-r", "llama.cpp 2026-10", 2.6e-06, 1.5e-05, 0.9841},
        {"cohere2", "llama.cpp 2026-10", 1.6e-06, 1.8e-05, 1.0000},
        {"ernie4_5", "llama.cpp 2026-10", 1.2e-05, 5.1e-05, 1.0000},
        {"exaone", "llama.cpp 2026-10", 6.5e-07, 3.4e-05, 0.9841},
        {"internlm2", "llama.cpp 2026-10", 3.4e-06, 2.2e-05, 0.9841},
        {"minicpm", "llama.cpp 2026-10", -7.9e-07, 9.4e-06, 1.0000},
        {"nemotron", "llama.cpp 2026-10", 7.7e-07, 2.8e-05, 1.0000},
        {"starcoder2", "llama.cpp 2026-10", 1.9e-06, 3.1e-05, 1.0000},
        {"gpt2", "llama.cpp 2026-10", 2.1e-06, 2.3e-05, 1.0000},
        {"gptneox", "llama.cpp 2026-10", 3.6e-06, 2.5e-05, 1.0000},
        {"gptneox-sequential", "llama.cpp 2026-10", 3.9e-06, 2.6e-05, 1.0000},
        {"phi2", "llama.cpp 2026-10", 4.3e-07, 2.6e-05, 1.0000},
        {"falcon", "llama.cpp 2026-10", 4.4e-07, 3.1e-05, 1.0000},
        {"falcon-40b", "llama.cpp 2026-10", 3.8e-06, 3.0e-05, 1.0000},
        {"stablelm", "llama.cpp 2026-10", 5.5e-07, 3.0e-05, 1.0000},
        {"stablelm-12b", "llama.cpp 2026-10", 6.9e-07, 2.1e-05, 0.9841},
        {"llama, linear RoPE", "llama.cpp 2026-10", 1.7e-06, 3.2e-05, 1.0000},
        {"llama, YaRN", "llama.cpp 2026-10", 3.2e-06, 2.7e-05, 1.0000},
        {"llama, llama3 RoPE factors", "llama.cpp 2026-10", 2.1e-06, 2.5e-05, 1.0000},
        {"llama, biases", "llama.cpp 2026-10", 1.2e-06, 3.3e-05, 1.0000},
        {"qwen3, YaRN", "llama.cpp 2026-10", 1.6e-06, 2.9e-05, 1.0000},
        {"gemma2, 27B", "llama.cpp 2026-10", 4.1e-06, 8.2e-06, 1.0000},
        {"gemma3, linear RoPE", "llama.cpp 2026-10", 4.9e-06, 2.9e-05, 1.0000},
        {"phi3, LongRoPE short", "llama.cpp 2025-02", 2.4e-07, 2.9e-05, 1.0000},
        {"phi3, LongRoPE long", "llama.cpp 2025-02", -5.9e-08, 2.5e-05, 1.0000},
        {"minicpm, LongRoPE", "llama.cpp 2025-02", -6.5e-08, 9.1e-06, 1.0000},
        {"mixtral", "llama.cpp 2026-10", 3.0e-06, 2.9e-05, 1.0000},
        {"qwen2moe", "llama.cpp 2026-10", 2.3e-06, 3.0e-05, 1.0000},
        {"olmoe", "llama.cpp 2026-10", 8.0e-07, 2.8e-05, 1.0000},
        {"gpt-oss", "llama.cpp 2026-10", 2.6e-06, 3.0e-05, 1.0000},
        {"granitemoe", "llama.cpp 2026-10", 7.4e-07, 1.3e-05, 1.0000},
        {"ernie4_5-moe", "llama.cpp 2026-10", 2.7e-06, 3.6e-05, 1.0000},
        {"olmo3", "llama.cpp 2026-10", 3.9e-06, 3.9e-05, 1.0000},
        {"hunyuan-dense", "llama.cpp 2026-10", 1.1e-05, 3.3e-05, 1.0000},
        {"exaone4", "llama.cpp 2026-10", 8.0e-06, 3.5e-05, 1.0000},
        {"exaone4-32b", "llama.cpp 2026-10", 8.1e-06, 3.2e-05, 1.0000},
        {"qwen3moe", "llama.cpp 2026-10", 3.8e-06, 3.3e-05, 1.0000},
        {"glm4moe", "llama.cpp 2026-10", 8.4e-07, 2.2e-05, 1.0000},
        {"minimax-m2", "llama.cpp 2026-10", -7.9e-07, 2.3e-05, 1.0000},
        {"hunyuan-moe", "llama.cpp 2026-10", 3.5e-06, 2.8e-05, 1.0000},
        {"deepseek2", "llama.cpp 2026-10", 4.2e-06, 3.3e-05, 0.9841},
        {"deepseek2-joint", "llama.cpp 2026-10", 3.1e-06, 2.7e-05, 1.0000},
        {"mistral3, YaRN", "llama.cpp 2026-10", 2.6e-06, 2.3e-05, 1.0000},
    };
    // clang-format on
    return kRows;
}

}  // namespace runnel::model
