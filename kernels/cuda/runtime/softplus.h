// For kernels of gates and routers.
#pragma once

#include "kernels/cuda/runtime/math.h"

namespace runnel::kernels::cuda {

// ln(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|)); log1p(t) = 2 atanh(t / (2 + t)), its series up to the 15th power.
DEVICE float softplus_p(float x) {
    const float t = exp_p(x < 0.0f ? x : -x), s = t / (2.0f + t), square = s * s;
    float p = 2.0f / 15;
    p = fma_rn(p, square, 2.0f / 13);
    p = fma_rn(p, square, 2.0f / 11);
    p = fma_rn(p, square, 2.0f / 9);
    p = fma_rn(p, square, 2.0f / 7);
    p = fma_rn(p, square, 2.0f / 5);
    p = fma_rn(p, square, 2.0f / 3);
    p = fma_rn(p, square, 2.0f);
    return fma_rn(p, s, x < 0.0f ? 0.0f : x);
}

}  // namespace runnel::kernels::cuda
