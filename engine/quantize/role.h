// What a tensor is in its layer, by its name: the mixes and the sensitivity to errors depend on it.
#pragma once

#include <cstdint>
#include <string_view>

namespace runnel::quantize {

enum class Role { Output, Embedding, Value, Key, Query, AttentionOutput, Up, Gate, Down, Other };

// Fused q, k and v count as Value, matrices of experts as those of a dense layer.
Role role_of(std::string_view tensor);

// The number of the tensor's layer; -1 outside the layers.
int64_t layer_of(std::string_view tensor);

}  // namespace runnel::quantize
