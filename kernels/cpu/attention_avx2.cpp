#include "kernels/cpu/attention_table.h"
#include "kernels/cpu/unfused_body.h"
#include "kernels/cpu/vector_lanes_avx2.h"
#include "kernels/cpu/vector_tables.h"

namespace runnel::kernels::cpu {

constinit const AttentionKernels kAttentionAvx2 = attention_table<Avx2Lanes>("avx2");
// (Here, because the products are those of attention.)
constinit const UnfusedKernels kUnfusedAvx2 = unfused_table<Avx2Lanes>();

}  // namespace runnel::kernels::cpu
