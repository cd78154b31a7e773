// The reference (kernels/reference/), and helpers that only tests need.
#pragma once

#include <span>
#include <vector>

#include "kernels/reference/operations.h"

namespace runnel::kernels::reference {

inline Row to_row(std::span<const float> x) {
    return Row(x.begin(), x.end());
}

// Multiplies a head by the Hadamard matrix of the largest power of two that divides its size n, divided by
// its root: H[i][j] = (-1)^(number of bits that i and j share), for each run of n.
void hadamard(std::span<double> head);

}  // namespace runnel::kernels::reference

namespace runnel {
namespace reference = kernels::reference;
}
