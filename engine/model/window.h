// Imposes a sliding window with attention sinks on a model that was trained without them.
#pragma once

#include <cstdint>

#include "kernels/program.h"

namespace runnel::model {

inline constexpr int32_t kMostSinks = 512;  // kernels::Attention::sink_cells

// Layers that attend to more than `window` cells (> 0) are limited to that, plus the first `sinks` cells (0
// .. kMostSinks). Layers with a smaller or a chunked window keep it. Layers with the same visible cells
// become one group of the cache. Throws ModelError for a program with an Indexer.
void impose_window(kernels::Program &program, int32_t window, int32_t sinks);

}  // namespace runnel::model
