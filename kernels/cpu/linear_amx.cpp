// The kernels for AMX: linear_amx_body.h with the instructions themselves.

// (GCC 12 warns about its own AVX-512 headers.)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/linear_amx_body.h"

namespace runnel::kernels::cpu {

const LinearKernels kLinearAmx{"amx",      pack_avx512,   multiply_amx, scratch_bytes_amx,
                               dequantize, &kLookupAvx512};

}  // namespace runnel::kernels::cpu
