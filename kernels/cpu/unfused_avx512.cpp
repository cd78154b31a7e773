#include "kernels/cpu/unfused_body.h"
#include "kernels/cpu/vector_lanes_avx512.h"

namespace runnel::kernels::cpu {

constinit const UnfusedKernels kUnfusedAvx512 = unfused_table<Avx512Lanes>();

}  // namespace runnel::kernels::cpu
