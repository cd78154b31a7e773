// Products of F32, F16 and BF16 weights: lanes are k mod 8, the eight partial sums of the contract
// (README.md). Four rows times up to three tokens stay in registers; a row's eight weights are converted once
// for all the tokens, a token's eight values are loaded once for all the rows. 16 multiply-adds per clock on
// CPUs with two 256-bit fma units. Included by the files of the instruction sets that have AVX2; linear_isa.h
// explains the anonymous namespace.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/linear_packed.h"

namespace runnel::kernels::cpu {
namespace {

struct PlainF32 {
    static constexpr int kBytes = 4;
    [[gnu::always_inline]] static __m256 eight(const std::byte *p) {
        return _mm256_loadu_ps(reinterpret_cast<const float *>(p));
    }
};

struct PlainF16 {
    static constexpr int kBytes = 2;
    [[gnu::always_inline]] static __m256 eight(const std::byte *p) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
    }
};

struct PlainBF16 {
    static constexpr int kBytes = 2;
    [[gnu::always_inline]] static __m256 eight(const std::byte *p) {
        const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i *>(p));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
    }
};

// ((P0 + P4) + (P2 + P6)) + ((P1 + P5) + (P3 + P7))
[[gnu::always_inline]] inline float fold_lanes(__m256 p) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(p), _mm256_extractf128_ps(p, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

constexpr int kPlainRows = 4;         // rows in registers
constexpr int kPlainTokens = 3;       // tokens in registers
constexpr int kPanelRows = 32;        // rows that stay in L2 while all tokens are processed
constexpr int64_t kPanelCols = 1024;  // columns of three tokens that stay in L1 for all rows of a panel

// The partial sums of a panel's rows for the current tokens.
template <int count>
using PlainSums = __m256[kPanelRows][count];

// A panel of rows of `cols` weights, `stride` bytes apart; row 0 is at `base`.
struct PlainPanel {
    const std::byte *base;
    int64_t stride;
    int64_t cols;
};

// Adds columns [k0, k1) of `rows` rows from `row`. `a` is the first token's first record; blocks of 256
// columns are `tokens` records apart.
template <typename Format, int rows, int count>
[[gnu::always_inline]] inline void add_plain(const PlainPanel &panel, int64_t row, int64_t k0, int64_t k1,
                                             const PackedF32 *a, int64_t tokens, PlainSums<count> &sums) {
    constexpr int64_t kLine = 64 / Format::kBytes;  // columns per cache line
    constexpr int kNear = 512;                      // prefetch distance in bytes, from L2 to L1
    const std::byte *base = panel.base + row * panel.stride;
    __m256 p[rows][count];
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 3
        for (int t = 0; t < count; ++t) p[r][t] = sums[row + r][t];
    const auto step = [&](const std::byte *w, int64_t w_stride, const float *x)
        __attribute__((always_inline)) {
        __m256 values[count];
#pragma GCC unroll 3
        for (int t = 0; t < count; ++t) values[t] = _mm256_load_ps(x + t * kRecordCols);
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) {
            const __m256 weights = Format::eight(w + r * w_stride);
#pragma GCC unroll 3
            for (int t = 0; t < count; ++t) p[r][t] = _mm256_fmadd_ps(weights, values[t], p[r][t]);
        }
    };
    int64_t k = k0;
    for (; k + kLine <= k1; k += kLine) {
        const std::byte *w = base + k * Format::kBytes;
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) {  // prefetches these rows into L1, and the bytes after them into L2
            _mm_prefetch(reinterpret_cast<const char *>(w + r * panel.stride + kNear), _MM_HINT_T0);
            const std::byte *next = base + rows * panel.stride + (k / kLine * rows + r) * 64;
            _mm_prefetch(reinterpret_cast<const char *>(next), _MM_HINT_T1);
        }
        const float *x = a[k / kRecordCols * tokens].x + k % kRecordCols;
#pragma GCC unroll 4
        for (int i = 0; i < kLine; i += 8) step(w + i * Format::kBytes, panel.stride, x + i);
    }
    for (; k + 8 <= k1; k += 8)
        step(base + k * Format::kBytes, panel.stride, a[k / kRecordCols * tokens].x + k % kRecordCols);
    if (k < k1) {  // the end of the rows, padded with zeros
        alignas(32) std::byte rest[rows][8 * Format::kBytes] = {};
        for (int r = 0; r < rows; ++r)
            for (int64_t i = 0; i < (k1 - k) * Format::kBytes; ++i)
                rest[r][i] = base[r * panel.stride + k * Format::kBytes + i];
        step(rest[0], 8 * Format::kBytes, a[k / kRecordCols * tokens].x + k % kRecordCols);
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 3
        for (int t = 0; t < count; ++t) sums[row + r][t] = p[r][t];
}

// Multiplies all rows of a panel by `count` tokens. The first tokens read whole rows, so
// that memory is read in order.
template <typename Format, int count>
void multiply_panel(const PlainPanel &panel, int64_t rows, bool first, const PackedF32 *a, int64_t tokens,
                    float *out, int64_t out_stride) {
    PlainSums<count> sums;
    for (int64_t r = 0; r < rows; ++r)
        for (int t = 0; t < count; ++t) sums[r][t] = _mm256_setzero_ps();
    const int64_t step = first ? panel.cols : kPanelCols;
    for (int64_t k0 = 0; k0 < panel.cols; k0 += step) {
        const int64_t k1 = k0 + step < panel.cols ? k0 + step : panel.cols;
        int64_t r = 0;
        for (; r + kPlainRows <= rows; r += kPlainRows)
            add_plain<Format, kPlainRows, count>(panel, r, k0, k1, a, tokens, sums);
        for (; r < rows; ++r) add_plain<Format, 1, count>(panel, r, k0, k1, a, tokens, sums);
    }
    for (int64_t r = 0; r < rows; ++r)
        for (int t = 0; t < count; ++t) out[t * out_stride + r] = fold_lanes(sums[r][t]);
}

template <typename Format>
void multiply_plain(const std::byte *weights, int64_t cols, int64_t row0, int64_t row1, const void *packed,
                    int64_t tokens, float *out, int64_t out_stride) {
    const int64_t stride = cols * Format::kBytes;
    const PackedF32 *a = static_cast<const PackedF32 *>(packed);
    for (int64_t r = row0; r < row1; r += kPanelRows) {
        const int64_t rows = r + kPanelRows < row1 ? kPanelRows : row1 - r;
        const PlainPanel panel{weights + r * stride, stride, cols};
        float *to = out + r;
        int64_t t = 0;
        for (; t + kPlainTokens <= tokens; t += kPlainTokens)
            multiply_panel<Format, kPlainTokens>(panel, rows, t == 0, a + t, tokens, to + t * out_stride,
                                                 out_stride);
        if (tokens - t == 2)
            multiply_panel<Format, 2>(panel, rows, t == 0, a + t, tokens, to + t * out_stride, out_stride);
        else if (tokens - t == 1)
            multiply_panel<Format, 1>(panel, rows, t == 0, a + t, tokens, to + t * out_stride, out_stride);
    }
}

}  // namespace
}  // namespace runnel::kernels::cpu
