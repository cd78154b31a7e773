// The AMX kernels with emulated tiles (emulated_tiles.h), for machines that have AVX-512 and perhaps no AMX.
#pragma once

#include "kernels/cpu/linear.h"

namespace runnel::tests {

// Null where linear_avx512() is.
const kernels::cpu::LinearKernels *emulated_amx();

}  // namespace runnel::tests
