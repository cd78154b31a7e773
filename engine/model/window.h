// A sliding window with attention sinks, imposed on a model that was made for more.
#pragma once

#include <cstdint>

#include "kernels/program.h"

namespace runnel::model {

inline constexpr int32_t kMostSinks = 512;  // kernels::Attention::sink_cells

// Every layer that looks further back than `window` cells (> 0) looks no further, but at the first `sinks`
// cells (0 .. kMostSinks) in addition. Layers with a smaller or a chunked window of their own keep that.
// Layers that look at the same cells become one group of the cache.
void impose_window(kernels::Program &program, int32_t window, int32_t sinks);

}  // namespace runnel::model
