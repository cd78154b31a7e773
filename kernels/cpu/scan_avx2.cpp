#include "kernels/cpu/scan_body.h"
#include "kernels/cpu/vector_lanes_avx2.h"

namespace runnel::kernels::cpu {

constinit const ScanKernels kScanAvx2 = scan_table<Avx2Lanes, Avx2Lanes>();

}  // namespace runnel::kernels::cpu
