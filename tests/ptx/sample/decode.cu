// Two of the kernels of linear.cu, which nvcc compiles in seconds: for `make ptx-sample`.
#include "kernels/cuda/linear/linear_body.h"

namespace runnel::kernels::cuda {

Kernel<LinearParams> sample_of_linear(bool grouped) {
    return grouped ? kernel_of<Linear<TileFormat::Q4_K, 2, true, false>>()
                   : kernel_of<Linear<TileFormat::Q6_K, 1, false, true>>();
}

}  // namespace runnel::kernels::cuda
