// The kernel tables of vector.h and attention.h. Data only: reading them executes no instruction of their sets.
#pragma once

#include "kernels/cpu/attention.h"
#include "kernels/cpu/vector.h"

namespace runnel::kernels::cpu {

extern const VectorKernels kVectorScalar, kVectorAvx2, kVectorAvx512;
extern const AttentionKernels kAttentionScalar, kAttentionAvx2, kAttentionAvx512;

}  // namespace runnel::kernels::cpu
