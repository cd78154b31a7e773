// Measures a device's peak rates, which kernel speeds are compared with, and tests its memory. Builds without
// nvcc throw (devices_absent.cpp).
#pragma once

#include <cstddef>
#include <cstdint>

namespace runnel::kernels::cuda {

// All of these use the device `device` (below find_devices().found.size()) from the calling thread, allocate
// their own memory, and throw BackendError.

// Bytes read and written per second by large copies within device memory, the best of `repeats`.
double copy_bandwidth(int device, size_t bytes = size_t{512} << 20, int repeats = 5);

// Operations per second (a multiply-add counts as two) of mma.sync with bf16 inputs (sm_75:
// f16) and float32 sums in registers: the tensor cores' peak for kernels that use mma.sync.
// (On sm_90, wgmma reaches about 1.6 times as much.) rounds: iterations of each warp's
// loop; fewer if 64 of them take a millisecond.
double tensor_rate(int device, int rounds = 4096);

// Writes patterns to `bytes` of device memory, copies them within it and reads them back. Returns the number
// of 8-byte words that changed.
uint64_t changed_words(int device, size_t bytes, uint64_t seed);

}  // namespace runnel::kernels::cuda
