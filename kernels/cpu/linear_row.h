// Products of one row after the other, read as one stream: what linear_row32.h, linear_row256.h, linear_row_q2q3.h and
// linear_row_bits.h share.
//
// With few tokens the bytes of the weights limit the speed. Rows side by side (linear_tile.h) are sixteen places to read from.
// One row is read in the order of addresses, and the rows of a matrix follow each other.
#pragma once

#include "kernels/cpu/linear_driver.h"
#include "kernels/cpu/linear_tile.h"

namespace runnel::kernels::cpu {
namespace {

// Up to this many tokens, a format's rows are multiplied one after the other; 0: always side by side. Each token has sums
// across of its own, so the gain shrinks.
template <typename Format>
constexpr int kTokensByRows = 0;
template <>
inline constexpr int kTokensByRows<FormatQ4_0> = 1;
template <>
inline constexpr int kTokensByRows<FormatQ4_1> = 2;
template <>
inline constexpr int kTokensByRows<FormatQ5_0> = 2;
template <>
inline constexpr int kTokensByRows<FormatQ5_1> = 2;
template <>
inline constexpr int kTokensByRows<FormatQ8_0> = 4;
template <>
inline constexpr int kTokensByRows<FormatQ1_0> = 1;
template <>
inline constexpr int kTokensByRows<FormatQ2_0> = 1;
template <>
inline constexpr int kTokensByRows<FormatQ2_K> = 4;
template <>
inline constexpr int kTokensByRows<FormatQ3_K> = 4;
template <>
inline constexpr int kTokensByRows<FormatQ4_K> = 2;
template <>
inline constexpr int kTokensByRows<FormatQ5_K> = 2;
template <>
inline constexpr int kTokensByRows<FormatQ6_K> = 2;

// Rows with fewer columns are side by side all the same: what a row costs beside its blocks outweighs the gain.
template <typename Format>
constexpr int64_t kColsByRows = 0;
template <>
inline constexpr int64_t kColsByRows<FormatQ2_K> = 1536;
template <>
inline constexpr int64_t kColsByRows<FormatQ3_K> = 1536;

// What is prefetched ahead of the bytes that are multiplied: at this distance into L1, and farther ahead into L2. Measured on
// two Xeon cores with AMX by decoding with 1.1B models (Q8_0, Q4_K_M, Q6_K): 768 to 1536 and 3072 to 5632 bytes differ by less
// than 3%, half or three times of that costs 4 to 10%; with L1 alone Q8_0 reads 8% less, without prefetching 20%.
constexpr int64_t kNear = 1024, kFar = 4096;

// What is read some time after the bytes of a row: it begins at these distances from it.
struct Ahead {
    int64_t near, far;
    // Prefetches what is read after the `bytes` bytes at `at`.
    template <int64_t bytes>
    [[gnu::always_inline]] void prefetch(const std::byte *at) const {
        const char *from = reinterpret_cast<const char *>(at);
#pragma GCC unroll 5
        for (int64_t i = 0; i < bytes; i += 64) {
            _mm_prefetch(from + near + i, _MM_HINT_T0);
            _mm_prefetch(from + far + i, _MM_HINT_T1);
        }
    }
};

// What is read after `row`, one of `rows`. After the last of them comes what is at rows.next; a null `next` becomes the row itself.
[[gnu::always_inline]] inline Ahead ahead_of(const RowRange &rows, const std::byte *row) {
    const std::byte *end = rows[rows.count];
    const auto after = [&](int64_t distance) __attribute__((always_inline)) {
        if (distance < end - row) return distance;
        return rows.next == nullptr ? 0 : distance + (rows.next - end);
    };
    return {after(kNear), after(kFar)};
}

// Calls multiply(row, r, ahead) for all rows.
template <typename Multiply>
[[gnu::always_inline]] inline void for_each_row(const RowRange &rows, Multiply multiply) {
    for (int64_t r = 0; r < rows.count; ++r) multiply(rows[r], r, ahead_of(rows, rows[r]));
}

// ((p0 + p4) + (p2 + p6)) + ((p1 + p5) + (p3 + p7)), the fold of the contract.
[[gnu::always_inline]] inline float folded(__m256 p) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(p), _mm256_extractf128_ps(p, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// The sums of the four lanes of each part of 128 bits of v[0] to v[3], in this order.
[[gnu::always_inline]] inline Ints sums_of_parts(const Ints (&v)[4]) {
    const Ints first = add32(interleave_low32(v[0], v[1]), interleave_high32(v[0], v[1]));
    const Ints second = add32(interleave_low32(v[2], v[3]), interleave_high32(v[2], v[3]));
    return add32(interleave_low64(first, second), interleave_high64(first, second));
}

}  // namespace
}  // namespace runnel::kernels::cpu
