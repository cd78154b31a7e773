// In place of the AVX2 kernels where they are not compiled: empty tables, which cpu_has_avx2() recognizes.
#include "kernels/cpu/linear_isa.h"
#include "kernels/cpu/scan.h"
#include "kernels/cpu/unfused_attention.h"
#include "kernels/cpu/vector_tables.h"

namespace runnel::kernels::cpu {

const LinearKernels kLinearAvx2{};
const LookupKernels kLookupAvx2{};
constinit const VectorKernels kVectorAvx2{};
constinit const AttentionKernels kAttentionAvx2{};
constinit const ScanKernels kScanAvx2{};
constinit const UnfusedKernels kUnfusedAvx2{};

}  // namespace runnel::kernels::cpu
