#include "kernels/cpu/vector_body.h"
#include "kernels/cpu/vector_lanes_avx2.h"
#include "kernels/cpu/vector_tables.h"

namespace runnel::kernels::cpu {

constinit const VectorKernels kVectorAvx2 = vector_table<Avx2Lanes, Avx2Lanes>("avx2");

}  // namespace runnel::kernels::cpu
