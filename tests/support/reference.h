// The reference (kernels/reference/), and helpers that only tests need.
#pragma once

#include <span>
#include <vector>

#include "kernels/reference/operations.h"

namespace runnel::kernels::reference {

inline Row to_row(std::span<const float> x) {
    return Row(x.begin(), x.end());
}

// Multiplies each run of n values of a head by H / sqrt(n), where n is the largest power of two that divides
// the size of the head and H[i][j] = (-1)^(number of bits that i and j share).
void hadamard(std::span<double> head);

}  // namespace runnel::kernels::reference

namespace runnel {
namespace reference = kernels::reference;
}
