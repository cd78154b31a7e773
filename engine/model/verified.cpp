// Written by scripts/verify-families; see verified.h.
#include "engine/model/verified.h"

namespace runnel::model {

std::span<const Verification> verifications() {
    // clang-format off
    static constexpr Verification kRows[] = {
        {"llama", "llama.cpp", -1.1e-07, 2.3e-05, 1.0000},
        {"qwen2", "llama.cpp", -8.4e-07, 2.1e-05, 1.0000},
        {"qwen3", "ik_llama.cpp", 2.7e-06, 3.0e-05, 0.9921},
        {"gemma", "llama.cpp", 4.4e-07, 2.9e-05, 0.9961},
        {"gemma2", "llama.cpp", 3.0e-07, 3.3e-06, 1.0000},
        {"gemma3", "ik_llama.cpp", 5.2e-06, 3.1e-05, 1.0000},
        {"mistral3", "ik_llama.cpp", 4.0e-06, 4.1e-05, 1.0000},
        {"phi3", "llama.cpp", 1.0e-06, 2.9e-05, 1.0000},
        {"glm4", "ik_llama.cpp", 1.8e-05, 8.8e-05, 0.9843},
        {"smollm3", "ik_llama.cpp", 2.4e-05, 7.1e-05, 0.9882},
        {"seed_oss", "ik_llama.cpp", 3.6e-06, 4.4e-05, 1.0000},
        {"olmo2", "llama.cpp", -6.3e-07, 2.8e-05, 1.0000},
        {"granite", "llama.cpp", 4.2e-07, 8.6e-06, 1.0000},
        {"command-r", "llama.cpp", -3.1e-07, 1.2e-05, 1.0000},
        {"cohere2", "llama.cpp", 2.9e-07, 9.4e-06, 1.0000},
        {"ernie4_5", "ik_llama.cpp", 2.4e-05, 8.5e-05, 1.0000},
        {"exaone", "llama.cpp", -4.5e-07, 2.5e-05, 1.0000},
        {"internlm2", "llama.cpp", -1.1e-07, 2.3e-05, 1.0000},
        {"minicpm", "llama.cpp", 2.0e-07, 9.2e-06, 1.0000},
        {"nemotron", "llama.cpp", 8.7e-07, 2.7e-05, 1.0000},
        {"starcoder2", "llama.cpp", 9.3e-07, 2.7e-05, 1.0000},
        {"gpt2", "llama.cpp", 1.2e-07, 2.4e-05, 1.0000},
        {"gptneox", "llama.cpp", 4.1e-07, 2.8e-05, 1.0000},
        {"gptneox-sequential", "llama.cpp", -2.5e-07, 2.2e-05, 1.0000},
        {"phi2", "llama.cpp", -1.2e-06, 2.2e-05, 0.9961},
        {"falcon", "llama.cpp", 1.1e-07, 2.2e-05, 1.0000},
        {"falcon-40b", "llama.cpp", -4.1e-07, 1.7e-05, 1.0000},
        {"stablelm", "llama.cpp", -9.5e-07, 1.9e-05, 1.0000},
        {"stablelm-12b", "llama.cpp", 2.5e-07, 2.5e-05, 1.0000},
        {"llama, linear RoPE", "llama.cpp", 2.7e-07, 2.3e-05, 1.0000},
        {"llama, YaRN", "llama.cpp", -8.4e-07, 2.2e-05, 0.9961},
        {"llama, llama3 RoPE factors", "llama.cpp", 1.2e-07, 2.8e-05, 1.0000},
        {"llama, biases", "llama.cpp", -7.5e-07, 3.3e-05, 1.0000},
        {"qwen3, YaRN", "ik_llama.cpp", 3.0e-06, 3.1e-05, 0.9961},
        {"gemma2, 27B", "llama.cpp", 4.8e-07, 4.1e-06, 1.0000},
        {"gemma3, linear RoPE", "ik_llama.cpp", 7.0e-06, 3.4e-05, 1.0000},
        {"phi3, LongRoPE short", "llama.cpp", 7.4e-07, 3.8e-05, 1.0000},
        {"phi3, LongRoPE long", "llama.cpp", 6.8e-07, 2.5e-05, 1.0000},
        {"minicpm, LongRoPE", "llama.cpp", 8.6e-08, 1.1e-05, 1.0000},
        {"mixtral", "llama.cpp", -3.9e-08, 2.5e-05, 1.0000},
        {"qwen2moe", "llama.cpp", 2.2e-05, 5.5e-03, 0.9961},
        {"olmoe", "llama.cpp", -1.9e-07, 1.9e-05, 1.0000},
        {"gpt-oss", "ik_llama.cpp", 5.1e-05, 1.2e-02, 1.0000},
        {"granitemoe", "llama.cpp", 3.3e-07, 9.8e-06, 1.0000},
        {"ernie4_5-moe", "ik_llama.cpp", 3.1e-06, 3.1e-05, 0.9961},
    };
    // clang-format on
    return kRows;
}

}  // namespace runnel::model
