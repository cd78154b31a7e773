// The canonical order of kernels/cuda/linear/linear.h on the host, from the file's bytes: what the kernels must
// equal to the bit. Of F16 and BF16 as the emulator sums the products of an mma; devices may differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gguf/block.h"

namespace runnel::tests {

// One token's activations as activations.h defines them.
struct QuantizedRow {
    std::vector<int32_t> values;  // of 12 bits
    std::vector<float> scale;     // per 256
};
QuantizedRow quantize_reference(std::span<const float> x);

// Likewise, for weights in F16 and BF16.
struct HalvedRow {
    std::vector<float> values;
    float scale = 0;
};
HalvedRow halve_reference(std::span<const float> x);

// One output: a row of weights in the layout of the file times a token's activations.
float canonical_dot(gguf::Type type, std::span<const std::byte> row, std::span<const float> x);

// How far from double precision the product of weights w (as numbers) and x may be because x is rounded: six
// standard deviations of errors that are independent and equally distributed within a step, and some 100
// roundings of float32.
double rounding_bound(gguf::Type type, std::span<const float> w, std::span<const float> x);

// How many values are not the canonical ones; of F16 and BF16 on a device, which sums the products of an mma
// in an order of its own, not within what that may change.
size_t not_canonical(gguf::Type type, std::span<const float> y, std::span<const float> expected);

}  // namespace runnel::tests
