#include "tests/kernels/cpu/emulated_amx.h"

#ifdef __AVX512F__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

// Before the kernels, which call them.
#include "tests/kernels/cpu/emulated_tiles.h"

#include "kernels/cpu/linear_amx_body.h"

namespace runnel::tests {

const kernels::cpu::LinearKernels *emulated_amx() {
    using namespace kernels::cpu;
    static const LinearKernels kernels{"amx, emulated", pack_avx512, multiply_amx, scratch_bytes_amx,
                                       dequantize};
    return linear_avx512() == nullptr ? nullptr : &kernels;
}

}  // namespace runnel::tests
#else
namespace runnel::tests {

const kernels::cpu::LinearKernels *emulated_amx() {
    return nullptr;
}

}  // namespace runnel::tests
#endif
