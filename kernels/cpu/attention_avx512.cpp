#include "kernels/cpu/attention_table.h"
#include "kernels/cpu/unfused_body.h"
#include "kernels/cpu/vector_lanes_avx512.h"
#include "kernels/cpu/vector_tables.h"

namespace runnel::kernels::cpu {

constinit const AttentionKernels kAttentionAvx512 = attention_table<Avx512Lanes>("avx512");
// (Here, because the products are those of attention.)
constinit const UnfusedKernels kUnfusedAvx512 = unfused_table<Avx512Lanes>();

}  // namespace runnel::kernels::cpu
