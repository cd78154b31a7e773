// AWQ (Lin et al. 2023, arXiv:2306.00978): scales for the channels of an input, so that the matrices that are multiplied
// with it lose less when they are quantized. Channels with large activations get large scales: their weights use more of
// the levels of a block.
//
//   s = m^r / sqrt(max m^r * min m^r), m: mean magnitude of a channel;  W' = Q(W diag(s)) diag(1/s)
//
// r is the one of 0, 0.1, ... 0.9 and then of +-0.05 around it with the least error of the products W' x: the squared
// difference from W x relative to the square of W x, summed over the matrices, on the even rows of the input sample.
// The scales are used only if they also lower the error on the odd rows; otherwise there are none.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/quantize/input_sample.h"
#include "gguf/file.h"

namespace runnel::quantize {

// Rows [first, first + rows) of a tensor: one matrix that reads the input.
struct ScaledMatrix {
    const gguf::Tensor *tensor;
    int64_t first, rows;
    gguf::Type type;                    // to be quantized to; not quantized: it has no error
    std::span<const float> importance;  // [columns], or empty
};

struct ChannelScales {
    std::vector<float> scales;     // by channel; empty: none are better
    double exponent = 0;           // r
    double before = 0, after = 0;  // error on the odd rows, without and with the scales
};

// channel_of: by column; several columns may share a channel. Errors are those of at most kScaleRows rows of all matrices
// together, evenly spaced. The result does not depend on the number of threads. between(): called often; it may throw.
// Throws QuantizeError for weights that are not finite.
inline constexpr int64_t kScaleRows = 1024;
ChannelScales choose_scales(std::span<const ScaledMatrix> matrices, const InputSample &sample,
                            std::span<const int32_t> channel_of, int64_t channels, int threads,
                            const std::function<void()> &between);

// How often choose_scales encodes each row.
inline constexpr int kScaleTrials = 12;

}  // namespace runnel::quantize
