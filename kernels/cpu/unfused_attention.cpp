#include "kernels/cpu/unfused_attention.h"

#include "kernels/cpu/vector.h"

namespace runnel::kernels::cpu {

const UnfusedKernels &unfused_best() {
    if (cpu_has_avx512()) return kUnfusedAvx512;
    return cpu_has_avx2() ? kUnfusedAvx2 : kUnfusedScalar;
}

}  // namespace runnel::kernels::cpu
