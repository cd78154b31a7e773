// linear_lookup.h with AVX2.

#include "kernels/cpu/linear_isa.h"
#include "kernels/cpu/linear_lookup_body.h"

namespace runnel::kernels::cpu {

const LookupKernels kLookupAvx2{sum, multiply_by_lookup};

}  // namespace runnel::kernels::cpu
