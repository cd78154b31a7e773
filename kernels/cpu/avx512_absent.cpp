// In place of the kernels for AVX-512 and AMX where they are not compiled: empty tables, which cpu_has_avx512() recognizes.
#include "kernels/cpu/linear_isa.h"
#include "kernels/cpu/scan.h"
#include "kernels/cpu/unfused_attention.h"
#include "kernels/cpu/vector_tables.h"

namespace runnel::kernels::cpu {

const LinearKernels kLinearAvx512{};
const LinearKernels kLinearAmx{};
const LookupKernels kLookupAvx512{};
constinit const VectorKernels kVectorAvx512{};
constinit const AttentionKernels kAttentionAvx512{};
constinit const ScanKernels kScanAvx512{};
constinit const UnfusedKernels kUnfusedAvx512{};

}  // namespace runnel::kernels::cpu
