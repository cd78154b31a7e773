// The layouts of packed activations, shared by all instruction sets.
//
// A buffer is [block of 256 columns][token]: one record per pair. The tokens of one block are adjacent, so a
// batch is read in the order of addresses, and tokens do not compete for the same cache sets. Columns beyond
// `cols` in the last record are zero, scales included.
//
// Sums of the int8 values are stored precomputed: weights enter the dot-product instructions as unsigned
// bytes w + 128, so an accumulator starts at -128 * sum.
#pragma once

#include <cstddef>
#include <cstdint>

namespace runnel::kernels::cpu {

inline constexpr int kRecordCols = 256;

struct alignas(64) PackedF32 {
    float x[kRecordCols];
};

// Eight groups of 32: x ~ scale[g] * q.
struct alignas(64) PackedQ8x32 {
    int8_t q[kRecordCols];
    float scale[8];
    int32_t start[8];     // -128 * sum(q) of the group
    float scaled_sum[8];  // scale * sum(q), rounded once
    int32_t half[8];      // -128 * sum(q) of the group's first 16
};
static_assert(sizeof(PackedQ8x32) == 384);

// One group of 256: x ~ scale * q.
struct alignas(64) PackedQ8x256 {
    int8_t q[kRecordCols];
    // -128 * sum(q) of 16 consecutive q. Subgroup 4 * i + l is at [4 * l + i]: the order in which a
    // transposing sum over four registers produces its results.
    int32_t start16[16];
    int32_t start32[8];  // -128 * sum(q) of 32 consecutive q
    int16_t sum32[8];    // sum(q) of 32 consecutive q
    int16_t sum16[16];   // sum(q) of 16 consecutive q
    float scale;
    std::byte padding[44];
};
static_assert(sizeof(PackedQ8x256) == 448);

// Index of subgroup `s` in PackedQ8x256::start16 (columns 16 s ... 16 s + 15 of the record).
static constexpr int start16_index(int s) {
    return 4 * (s % 4) + s / 4;
}

static constexpr int64_t record_count(int64_t cols) {
    return (cols + kRecordCols - 1) / kRecordCols;
}

// A group whose largest magnitude is below this is stored as zeros (127 / amax must not overflow).
inline constexpr float kTinyActivation = 1e-30f;

}  // namespace runnel::kernels::cpu
