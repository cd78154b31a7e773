// Tables of 16 bytes that nibbles index. For kernels.
#pragma once

#include "kernels/cuda/runtime/device.h"

namespace runnel::kernels::cuda {

// gguf::kIQ4Values plus 128, four to a word.
inline constexpr uint32_t kIQ4Word0 = 0x3f2d1801u, kIQ4Word1 = 0x766a5d4fu, kIQ4Word2 = 0xa6998d81u,
                          kIQ4Word3 = 0xf1d9c5b5u;

// Looks up the eight nibbles of a word in a table of 16 bytes: the low nibbles of its four bytes into `low`,
// the high ones into `high`.
DEVICE void look_up(const uint32_t (&table)[4], uint32_t word, uint32_t &low, uint32_t &high) {
    uint32_t mixed[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const uint32_t codes = word >> 16 * i, index = codes & 0x7777u;
        mixed[i] = prmt(prmt(table[0], table[1], index), prmt(table[2], table[3], index),
                        0x3210u | (codes >> 1 & 0x4444u));
    }
    low = prmt(mixed[0], mixed[1], 0x6420u);
    high = prmt(mixed[0], mixed[1], 0x7531u);
}

}  // namespace runnel::kernels::cuda
