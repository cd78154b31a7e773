#include "kernels/cpu/vector_body.h"
#include "kernels/cpu/vector_lanes_avx2.h"
#include "kernels/cpu/vector_lanes_avx512.h"
#include "kernels/cpu/vector_tables.h"

namespace runnel::kernels::cpu {

constinit const VectorKernels kVectorAvx512 = vector_table<Avx512Lanes, Avx2Lanes>("avx512");

}  // namespace runnel::kernels::cpu
