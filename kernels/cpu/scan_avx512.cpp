#include "kernels/cpu/scan_body.h"
#include "kernels/cpu/vector_lanes_avx2.h"
#include "kernels/cpu/vector_lanes_avx512.h"

namespace runnel::kernels::cpu {

constinit const ScanKernels kScanAvx512 = scan_table<Avx512Lanes, Avx2Lanes>();

}  // namespace runnel::kernels::cpu
