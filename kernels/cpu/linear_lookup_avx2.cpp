// linear_lookup.h with AVX2.

#include "kernels/cpu/linear_isa.h"
#include "kernels/cpu/linear_lookup_body.h"

namespace runnel::kernels::cpu {
namespace {

// Measured on a Xeon of 2019, weights in memory and in L2.
int32_t most_tokens(gguf::Type type) {
    return lookup_tile(type).planes == 0 ? 0 : kMostLookupTokens;
}

}  // namespace

const LookupKernels kLookupAvx2{most_tokens, sum, multiply_by_lookup};

}  // namespace runnel::kernels::cpu
