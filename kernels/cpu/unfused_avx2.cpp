#include "kernels/cpu/unfused_body.h"
#include "kernels/cpu/vector_lanes_avx2.h"

namespace runnel::kernels::cpu {

constinit const UnfusedKernels kUnfusedAvx2 = unfused_table<Avx2Lanes>();

}  // namespace runnel::kernels::cpu
