// How fast this machine reads memory: the limit of decoding, measured.
#pragma once

#include <cstddef>

namespace runnel::decode {

// Bytes per second at which `threads` threads (>= 1) together read `bytes` of memory (each its own part, once
// per pass, in order, 64-byte loads), the best of `passes`. The memory is taken and touched before the clock
// starts. Throws std::bad_alloc.
double measure_read_bandwidth(int threads, size_t bytes = size_t{512} << 20, int passes = 5);

}  // namespace runnel::decode
