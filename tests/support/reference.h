// The reference (kernels/reference/), and what only tests need of the kind.
#pragma once

#include <span>
#include <vector>

#include "kernels/reference/operations.h"

namespace runnel::kernels::reference {

inline Row to_row(std::span<const float> x) {
    return Row(x.begin(), x.end());
}

// A head times the Hadamard matrix of the largest power of two that divides its size n, over its root:
// H[i][j] = (-1)^(bits that i and j share), of each run of n.
void hadamard(std::span<double> head);

}  // namespace runnel::kernels::reference

namespace runnel {
namespace reference = kernels::reference;
}
