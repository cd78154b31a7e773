// Gemma 3 and Gemma 3n, the text models.
#pragma once

#include <string_view>

#include "engine/convert/decoder.h"

namespace runnel::convert {

void convert_gemma3(Decoder &decoder);
void convert_gemma3n(Decoder &decoder);

// Family::defaults of both.
inline constexpr std::string_view kGemma3Defaults =
    R"({"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256, "rope_theta": 1e6, "sliding_window": 4096})";
inline constexpr std::string_view kGemma3nDefaults =
    R"({"hidden_size": 2048, "num_hidden_layers": 35, "intermediate_size": 16384, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh", "rope_theta": 1e6, "sliding_window": 512,
    "final_logit_softcapping": 30, "hidden_size_per_layer_input": 256, "num_kv_shared_layers": 15})";

}  // namespace runnel::convert
