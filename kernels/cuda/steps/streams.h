// Steps of a few numbers per token or head: StreamWeights of program.h and JoinAttention of attention_steps.h.
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime/kernel.h"

namespace runnel::kernels::cuda {

// StreamWeights. A warp per token, on any grid; sums are in ascending order.
inline constexpr int kMostStreams = 7, kStreamWarps = 4;
inline constexpr size_t kStreamShared = kStreamWarps * kMostStreams * (kMostStreams + 2) * sizeof(float);
struct StreamParams {
    const float *in, *scales, *bias;
    float *read, *mix;  // mix may be null
    int64_t in_stride, read_stride, mix_stride;
    int32_t streams, iterations, tokens;
    float eps;
};
Kernel<StreamParams> stream_weights_kernel();

// JoinAttention. A thread per element of the output, on any grid; out may be an input of the first part. Each input is read
// once.
inline constexpr int kJoinParts = 4;
struct JoinParams {
    struct Part {
        const float *in, *sums;
        int64_t in_stride, sums_stride;  // from token to token
    };
    Part part[kJoinParts];
    float *out;
    int64_t out_stride;
    int32_t parts, heads, dim, tokens;
};
Kernel<JoinParams> join_attention_kernel();

}  // namespace runnel::kernels::cuda
