#include "kernels/cpu/vector_body.h"
#include "kernels/cpu/vector_lanes_scalar.h"
#include "kernels/cpu/vector_tables.h"

namespace runnel::kernels::cpu {

constinit const VectorKernels kVectorScalar = vector_table<ScalarLanes, ScalarLanes>("scalar");

}  // namespace runnel::kernels::cpu
