// One of the kernels of linear_prefill.cu, which nvcc compiles in seconds: for `make ptx-sample`.
#include "kernels/cuda/linear/linear_prefill_body.h"

namespace runnel::kernels::cuda {

Kernel<PrefillParams> sample_of_prefill() {
    return kernel_of<LinearPrefill<TileFormat::Q5_0>>();
}

}  // namespace runnel::kernels::cuda
