// The canonical order of kernels/cuda/linear.h on the host, from the file's bytes: what the kernels must
// equal to the bit. Of F16 and BF16 as the emulator sums the products of an mma; devices may differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gguf/block.h"

namespace runnel::tests {

// One token's activations as activations.h defines them.
struct QuantisedRow {
    std::vector<int32_t> high, low;
    std::vector<float> scale;  // per 256
};
QuantisedRow quantise_reference(std::span<const float> x);

// Likewise, for weights in F16 and BF16.
struct HalvedRow {
    std::vector<float> values;
    float scale = 0;
};
HalvedRow halve_reference(std::span<const float> x);

// One output: a row of weights in the layout of the file times a token's activations.
float canonical_dot(gguf::Type type, std::span<const std::byte> row, std::span<const float> x);

}  // namespace runnel::tests
