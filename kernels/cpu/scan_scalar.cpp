#include "kernels/cpu/scan_body.h"
#include "kernels/cpu/vector_lanes_scalar.h"

namespace runnel::kernels::cpu {

constinit const ScanKernels kScanScalar = scan_table<ScalarLanes, ScalarLanes>();

}  // namespace runnel::kernels::cpu
