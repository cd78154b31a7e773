// What a device can do at most, measured on it, and whether its memory keeps what is written to it: what the
// speed of kernels is held against. Builds without nvcc throw (devices_absent.cpp).
#pragma once

#include <cstddef>
#include <cstdint>

namespace runnel::kernels::cuda {

// All of these use the device `device` (below find_devices().found.size()) from the calling thread, take
// memory of their own, and throw BackendError.

// Bytes read and written per second by large copies within device memory, the best of `repeats`.
double copy_bandwidth(int device, size_t bytes = size_t{512} << 20, int repeats = 5);

// Operations per second (a multiply-add is two) of mma.sync with bf16 inputs (sm_75: f16) and float32 sums in
// registers:
// what the tensor cores give kernels that are written with it. (On sm_90 wgmma gives about 1.6 times as
// much.) Rounds: how often each warp goes through its loop.
double tensor_rate(int device, int rounds = 4096);

// Writes patterns to `bytes` of device memory, copies them within it, reads them back. Returns how many of
// the 8-byte words came back changed.
uint64_t changed_words(int device, size_t bytes, uint64_t seed);

}  // namespace runnel::kernels::cuda
