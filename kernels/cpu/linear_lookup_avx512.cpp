// linear_lookup.h with AVX-512.

// (GCC 12 warns about its own AVX-512 headers.)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include "kernels/cpu/linear_isa.h"
#include "kernels/cpu/linear_lookup_body.h"

namespace runnel::kernels::cpu {
namespace {

// Measured on a Xeon of 2019, weights in memory and in L2.
int32_t most_tokens(gguf::Type type) {
    // (One token reads Q2_0 row by row as fast: linear_row_bits.h.)
    if (type == gguf::Type::Q2_0 || lookup_tile(type).planes == 0) return 0;
    return lookup_tile(type).planes == 1 ? kMostLookupTokens : 3;
}

}  // namespace

const LookupKernels kLookupAvx512{most_tokens, sum, multiply_by_lookup};

}  // namespace runnel::kernels::cpu
