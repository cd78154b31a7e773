// The kernel tables of vector.h and attention.h. Data only: reading a table executes nothing of its instruction set.
#pragma once

#include "kernels/cpu/attention.h"
#include "kernels/cpu/vector.h"

namespace runnel::kernels::cpu {

extern const VectorKernels kVectorScalar, kVectorAvx2, kVectorAvx512;
extern const AttentionKernels kAttentionScalar, kAttentionAvx2, kAttentionAvx512;

}  // namespace runnel::kernels::cpu
