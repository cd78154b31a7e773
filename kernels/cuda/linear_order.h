// What the kernels for few and for many tokens share: the order of linear.h, and how work is numbered.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/linear.h"

namespace runnel::kernels::cuda {

// hi and lo joined: see linear.h.
DEVICE float join(float high, float low) {
    return fma_rn(low, kLowScale, high);
}
DEVICE float join(int32_t high, int32_t low) {
    return join(static_cast<float>(high), static_cast<float>(low));
}

// An exact integer below 2^22 in magnitude, added to this, reads as the float 12582912 + integer.
constexpr int32_t kMagicBits = 0x4b400000;
constexpr float kMagic = 12582912.0f;

// --- ranges of blocks ---

struct Range {
    int32_t begin, end;  // blocks
};

DEVICE Range range_of(int32_t blocks, int warps, int index) {
    return {index * blocks / warps, (index + 1) * blocks / warps};
}

// Groups of 32 columns in a block, and the chunks that hold them.
DEVICE int groups_at(int32_t cols, int32_t block) {
    const int32_t left = cols / 32 - 8 * block;
    return left < 8 ? left : 8;
}
DEVICE int chunks_at(int32_t cols, int32_t block) {
    return (groups_at(cols, block) + 1) / 2;
}

// --- units of work ---

// Row tiles of all matrices. With a gate, its tile and that of `up` are one.
DEVICE int32_t tiles_of(const LinearParams &p) {
    if (p.gate != LinearGate::None) return static_cast<int32_t>(row_tiles(p.matrix[0].rows));
    int32_t tiles = 0;
    for (int i = 0; i < p.matrices; ++i) tiles += static_cast<int32_t>(row_tiles(p.matrix[i].rows));
    return tiles;
}

// Groups of at most kTokens tokens.
template <int kTokens>
DEVICE int32_t groups_of(const LinearParams &p) {
    return p.groups ? *p.group_count : (p.tokens + kTokens - 1) / kTokens;
}

// The rows of group `index`.
template <int kTokens>
DEVICE TokenGroup group_at(const LinearParams &p, int32_t index) {
    if (p.groups) return p.groups[index];
    const int32_t first = kTokens * index, left = p.tokens - first;
    return {0, first, left < kTokens ? left : kTokens};
}

}  // namespace runnel::kernels::cuda
