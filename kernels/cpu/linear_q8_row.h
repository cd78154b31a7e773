// Products of Q8_0 with up to four tokens, for AVX-512: one row at a time with 64 columns in a register, where other formats,
// and more tokens, have 16 rows side by side (linear_tile.h).
//
// Q8_0 has the most bytes per weight, so decode is limited by how fast they arrive. Rows side by side are sixteen places to
// read from, and their transposition takes 32 shuffles per 544 bytes; a row is read in the order of addresses, with 24
// shuffles per 544 bytes. The order of all float operations is that of the tiles: lane j holds what they keep in their j-th
// partial sum of the row.
#pragma once

#include "kernels/cpu/linear_driver.h"
#include "kernels/cpu/linear_packed.h"
#include "kernels/cpu/linear_tile.h"

namespace runnel::kernels::cpu {
namespace {

constexpr int64_t kQ8Bytes = FormatQ8_0::kBlockBytes, kQ8RecordBytes = kRecordCols / 32 * kQ8Bytes;

// The sums of the four lanes of each part of 128 bits of v[0] to v[3], in this order.
[[gnu::always_inline]] inline Ints sums_of_parts(const Ints (&v)[4]) {
    const Ints first = add32(interleave_low32(v[0], v[1]), interleave_high32(v[0], v[1]));
    const Ints second = add32(interleave_low32(v[2], v[3]), interleave_high32(v[2], v[3]));
    return add32(interleave_low64(first, second), interleave_high64(first, second));
}

// The weights + 128 of eight blocks, 64 columns in a register.
struct Q8Weights {
    Ints w[4];

    [[gnu::always_inline]] explicit Q8Weights(const std::byte *blocks) {
        const auto block = [&](int j) __attribute__((always_inline)) {
            return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(blocks + j * kQ8Bytes + 2));
        };
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const Ints pair = _mm512_inserti64x4(_mm512_castsi256_si512(block(2 * i)), block(2 * i + 1), 1);
            w[i] = pair ^ splat(0x80808080);
        }
    }
    // The integers of the eight groups of 32 columns: sum(w q).
    [[gnu::always_inline]] __m256i products(const PackedQ8x32 &record) const {
        Ints sums[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i)
            sums[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w[i], _mm512_load_si512(record.q + 64 * i));
        const Ints parts =
            sums_of_parts(sums);  // groups 0 2 4 6 in parts 0 and 1, groups 1 3 5 7 in parts 2 and 3
        const __m256i all =
            _mm256_add_epi32(_mm512_castsi512_si256(_mm512_shuffle_i32x4(parts, parts, 0x08)),
                             _mm512_castsi512_si256(_mm512_shuffle_i32x4(parts, parts, 0x0d)));
        const __m256i products = _mm256_permutevar8x32_epi32(all, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        return _mm256_add_epi32(products, _mm256_load_si256(reinterpret_cast<const __m256i *>(record.start)));
    }
};

// The scales of the eight blocks at `blocks`.
[[gnu::always_inline]] inline __m256 q8_scales(const std::byte *blocks) {
    // In 64 bytes from an even block on, its scale is in dword 0 and that of the next block in the upper half of dword 8.
    const auto load = [&](int i) __attribute__((always_inline)) {
        return _mm512_loadu_si512(blocks + 2 * i * kQ8Bytes);
    };
    const Ints order = _mm512_setr_epi32(0, 8, 16, 24, 0, 8, 16, 24, 0, 8, 16, 24, 0, 8, 16, 24);
    const __m128i upper = _mm_setr_epi32(16, 0, 16, 0);
    const auto four = [&](Ints a, Ints b) __attribute__((always_inline)) {
        const __m128i pairs = _mm512_castsi512_si128(_mm512_permutex2var_epi32(a, order, b));
        return _mm_srli_epi32(_mm_sllv_epi32(pairs, upper), 16);
    };
    return _mm256_cvtph_ps(_mm_packus_epi32(four(load(0), load(1)), four(load(2), load(3))));
}

// A row's products with `count` tokens, which are stored `out_stride` apart. records: of the first token; those of a token
// are `tokens` apart. ahead(at): prefetches what is read after the 256 columns at `at`.
template <int count, typename Ahead>
[[gnu::always_inline]] inline void multiply_q8_row(const std::byte *row, int64_t cols,
                                                   const PackedQ8x32 *records, int64_t tokens, float *out,
                                                   int64_t out_stride, Ahead ahead) {
    __m256 sums[count];
#pragma GCC unroll 4
    for (int t = 0; t < count; ++t) sums[t] = _mm256_setzero_ps();
    // there: the groups of 32 columns that exist.
    const auto add = [&](const std::byte *blocks, __mmask8 there) __attribute__((always_inline)) {
        const Q8Weights weights(blocks);
        const __m256 d = q8_scales(blocks);
#pragma GCC unroll 4
        for (int t = 0; t < count; ++t) {
            const __m256 scale = _mm256_mul_ps(d, _mm256_load_ps(records[t].scale));
            sums[t] = _mm256_mask3_fmadd_ps(scale, _mm256_cvtepi32_ps(weights.products(records[t])), sums[t],
                                            there);
        }
    };
    int64_t left = cols;
    for (; left >= kRecordCols; left -= kRecordCols, row += kQ8RecordBytes, records += tokens) {
        ahead(row);
        add(row, 0xff);
    }
    if (left > 0) {
        std::byte padded[kQ8RecordBytes] = {};  // the last blocks of the row, then zeros
        __builtin_memcpy(padded, row, static_cast<size_t>(left / 32 * kQ8Bytes));
        add(padded, static_cast<__mmask8>((1u << left / 32) - 1));
    }
#pragma GCC unroll 4
    for (int t = 0; t < count; ++t) {  // as store_folded() does
        const __m128 four = _mm_add_ps(_mm256_castps256_ps128(sums[t]), _mm256_extractf128_ps(sums[t], 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        out[t * out_stride] = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
}

// Up to so many tokens are multiplied row by row. Each token has sums across of its own, so the gain shrinks: on the
// cores and model below, 2 sequences decode 16% faster, 3 and 4 7% faster.
constexpr int kQ8RowTokens = 4;

// What is prefetched ahead of the row that is multiplied, in bytes: into L1, and farther ahead into L2. Measured on Xeon cores
// with AMX, decode of a 1.1B model, in shares of the bandwidth of one and of two cores: 94 and 88%; with L1 alone 87 and 80%,
// without prefetching 73 and 70% (L1 4096 ahead 55% of two), with rows side by side 77 and 75%.
constexpr int64_t kQ8Near = 1536, kQ8Far = 5632;

// Multiplies a tile of rows with the tokens t0 to t0 + count - 1.
template <int count>
inline void multiply_q8_rows(Rows rows, const Task &task, int32_t t0) {
    const std::byte *end = rows[task.rows];
    // What is `distance` after `at`, if the next tile follows this one; without a next tile, `at`.
    const auto after = [&](const std::byte *at, int64_t distance) __attribute__((always_inline)) {
        const std::byte *to = at + distance;
        if (to < end) return to;
        return task.next == nullptr ? at : task.next + (to - end);
    };
    const auto ahead = [&](const std::byte *at) __attribute__((always_inline)) {
        const auto *near = reinterpret_cast<const char *>(after(at, kQ8Near)),
                   *far = reinterpret_cast<const char *>(after(at, kQ8Far));
#pragma GCC unroll 5
        for (int i = 0; i < kQ8RecordBytes; i += 64) {
            _mm_prefetch(near + i, _MM_HINT_T0);
            _mm_prefetch(far + i, _MM_HINT_T1);
        }
    };
    const auto *records = static_cast<const PackedQ8x32 *>(task.packed) + t0;
    float *out = task.out + t0 * task.out_stride;
    for (int r = 0; r < task.rows; ++r)
        multiply_q8_row<count>(rows[r], task.cols, records, task.tokens, out + r, task.out_stride, ahead);
}

}  // namespace
}  // namespace runnel::kernels::cpu
