// linear_lookup.h with AVX-512.

// (GCC 12 warns about its own AVX-512 headers.)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include "kernels/cpu/linear_isa.h"
#include "kernels/cpu/linear_lookup_body.h"

namespace runnel::kernels::cpu {

const LookupKernels kLookupAvx512{sum, multiply_by_lookup};

}  // namespace runnel::kernels::cpu
