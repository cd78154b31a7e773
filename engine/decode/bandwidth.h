// How fast this machine reads memory: the limit of decoding, measured.
#pragma once

#include <cstddef>

namespace runnel::decode {

// Bytes per second at which `threads` threads (>= 1) together read `bytes` of memory (each its own part, once
// per pass, in order), the best of `passes`. The memory is taken and touched before the clock starts, in the
// smallest pages: weights are read in place from a mapped file, whose pages are small. (In 2 MB pages the
// same loop may be a third faster.) Throws std::bad_alloc.
double measure_read_bandwidth(int threads, size_t bytes = size_t{512} << 20, int passes = 5);

}  // namespace runnel::decode
