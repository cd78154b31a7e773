#include "kernels/cpu/attention_table.h"
#include "kernels/cpu/vector_lanes_scalar.h"
#include "kernels/cpu/vector_tables.h"

namespace runnel::kernels::cpu {

constinit const AttentionKernels kAttentionScalar = attention_table<ScalarLanes>("scalar");

}  // namespace runnel::kernels::cpu
