#include "kernels/cpu/unfused_body.h"
#include "kernels/cpu/vector_lanes_scalar.h"

namespace runnel::kernels::cpu {

constinit const UnfusedKernels kUnfusedScalar = unfused_table<ScalarLanes>();

}  // namespace runnel::kernels::cpu
