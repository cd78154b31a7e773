#include "kernels/cpu/attention_table.h"
#include "kernels/cpu/vector_lanes_avx2.h"
#include "kernels/cpu/vector_tables.h"

namespace runnel::kernels::cpu {

constinit const AttentionKernels kAttentionAvx2 = attention_table<Avx2Lanes>("avx2");

}  // namespace runnel::kernels::cpu
