// Runs mixtures of experts in two steps, so that devices can share out the rows of their matrices (tensor_program.h).
#pragma once

#include <cstdint>

#include "kernels/program.h"

namespace runnel::kernels {

// The unit in which the rows of gate and up are shared out among devices: the smallest multiple of 16 rows, the height of
// a weight tile, with which a slot of h has a multiple of Experts::kHiddenUnit floats.
int64_t hidden_rows_unit(const Experts &step);

// The program with two steps, one that computes h and one that reads it, for every Experts step whose width is a multiple
// of its hidden_rows_unit(); others are unchanged. The results have the same bits.
Program with_expert_halves(const Program &program);

}  // namespace runnel::kernels
