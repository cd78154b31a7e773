// What stands between the matrices and fits no other kernel.
#pragma once

#include <cstdint>

#include "kernels/cuda/kernel.h"

namespace runnel::kernels::cuda {

// Gate::Act of program.h.
enum class Activation : int32_t { Silu, GeluTanh, GeluErf, ReluSquared, SiluClamped };

// out = act(gate) * up, or act(gate) without up. Any grid.
struct ActivateParams {
    const float *gate, *up;  // up may be null; out may be gate or up
    float *out;
    int64_t gate_stride, up_stride, out_stride;
    int32_t width, rows;
    Activation activation;
};
Kernel<ActivateParams> activate_kernel();

// x = cap * tanh(x / cap), in place. Any grid.
struct SoftcapParams {
    float *x;
    int64_t count;
    float cap;
};
Kernel<SoftcapParams> softcap_kernel();

}  // namespace runnel::kernels::cuda
