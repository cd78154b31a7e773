// The canonical order of kernels/cuda/linear/linear.h on the host, from the file's bytes: the exact results of
// the kernels. For F16 and BF16, the products of an mma are summed in the emulator's order; devices may differ.
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

// One token's activations for weights in F16 and BF16.
struct HalvedRow {
    std::vector<float> values;
    float scale = 0;
};
HalvedRow halve_reference(std::span<const float> x);

// One output: a row of weights in the layout of the file times a token's activations. one_range: the row is one range of a
// longer row.
float canonical_dot(gguf::Type type, std::span<const std::byte> row, std::span<const float> x,
                    bool one_range = false);

// Bound on the error of the product of weights w (as numbers) and x caused by rounding x: six
// standard deviations of errors that are independent and uniformly distributed in a step, and
// about 100 roundings of float32.
double rounding_bound(gguf::Type type, std::span<const float> w, std::span<const float> x);

// Number of values that differ from the canonical ones. For F16 and BF16 on a real device, which sums the
// products of an mma in its own order, only differences beyond that effect count.
size_t not_canonical(gguf::Type type, std::span<const float> y, std::span<const float> expected);

}  // namespace runnel::tests
