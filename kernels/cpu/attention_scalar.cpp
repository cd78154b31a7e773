#include "kernels/cpu/attention_table.h"
#include "kernels/cpu/unfused_body.h"
#include "kernels/cpu/vector_lanes_scalar.h"
#include "kernels/cpu/vector_tables.h"

namespace runnel::kernels::cpu {

constinit const AttentionKernels kAttentionScalar = attention_table<ScalarLanes>("scalar");
// (Here, because the products are those of attention.)
constinit const UnfusedKernels kUnfusedScalar = unfused_table<ScalarLanes>();

}  // namespace runnel::kernels::cpu
