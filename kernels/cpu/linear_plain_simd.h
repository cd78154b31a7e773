// F32, F16 and BF16 weights: lanes are k mod 8, as the contract's eight partial sums are (README.md).
// Four rows times up to three tokens stay in registers; a row's eight weights are converted once for the
// tokens, a token's eight values loaded once for the rows. 16 multiply-adds per clock where two 256-bit fma
// run. Included by the files of the instruction sets that have AVX2; see linear_isa.h for why all is
// anonymous.
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

constexpr int kPlainRows = 4;    // rows in registers
constexpr int kPlainTokens = 3;  // tokens in registers

// Prefetch distance within a row, bytes.
constexpr int kPlainAhead = 2048;

// `row` + i * stride for i < rows; `a` is the token's first record, the next block of 256 is `tokens` on.
template <typename Format, int rows, int count>
[[gnu::always_inline]] inline void plain_tile(const std::byte *row, int64_t stride, int64_t cols,
                                              const PackedF32 *a, int64_t tokens, float *out,
                                              int64_t out_stride) {
    __m256 p[rows][count];
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 3
        for (int t = 0; t < count; ++t) p[r][t] = _mm256_setzero_ps();
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
    int64_t k = 0;
    for (; k + 8 <= cols; k += 8) {
        const std::byte *w = row + k * Format::kBytes;
        if constexpr (count == 1)
            if (k % (64 / Format::kBytes) == 0)
#pragma GCC unroll 4
                for (int r = 0; r < rows; ++r)
                    _mm_prefetch(reinterpret_cast<const char *>(w + r * stride + kPlainAhead), _MM_HINT_T0);
        step(w, stride, a[k / kRecordCols * tokens].x + k % kRecordCols);
    }
    if (k < cols) {  // the rest of the rows, continued with zeros
        alignas(32) std::byte rest[rows][8 * Format::kBytes] = {};
        for (int r = 0; r < rows; ++r)
            for (int64_t i = 0; i < (cols - k) * Format::kBytes; ++i)
                rest[r][i] = row[r * stride + k * Format::kBytes + i];
        step(rest[0], 8 * Format::kBytes, a[k / kRecordCols * tokens].x + k % kRecordCols);
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 3
        for (int t = 0; t < count; ++t) out[t * out_stride + r] = fold_lanes(p[r][t]);
}

template <typename Format, int count>
void plain_rows(const std::byte *weights, int64_t stride, int64_t cols, int64_t row0, int64_t row1,
                const PackedF32 *a, int64_t tokens, float *out, int64_t out_stride) {
    int64_t r = row0;
    for (; r + kPlainRows <= row1; r += kPlainRows)
        plain_tile<Format, kPlainRows, count>(weights + r * stride, stride, cols, a, tokens, out + r,
                                              out_stride);
    for (; r < row1; ++r)
        plain_tile<Format, 1, count>(weights + r * stride, stride, cols, a, tokens, out + r, out_stride);
}

template <typename Format>
void multiply_plain(const std::byte *weights, int64_t cols, int64_t row0, int64_t row1, const void *packed,
                    int64_t tokens, float *out, int64_t out_stride) {
    constexpr int64_t kRowsInCache = 32;  // read again for every three tokens
    const int64_t stride = cols * Format::kBytes;
    const PackedF32 *a = static_cast<const PackedF32 *>(packed);
    for (int64_t r = row0; r < row1; r += kRowsInCache) {
        const int64_t end = r + kRowsInCache < row1 ? r + kRowsInCache : row1;
        int64_t t = 0;
        for (; t + kPlainTokens <= tokens; t += kPlainTokens)
            plain_rows<Format, kPlainTokens>(weights, stride, cols, r, end, a + t, tokens,
                                             out + t * out_stride, out_stride);
        if (tokens - t == 2)
            plain_rows<Format, 2>(weights, stride, cols, r, end, a + t, tokens, out + t * out_stride,
                                  out_stride);
        else if (tokens - t == 1)
            plain_rows<Format, 1>(weights, stride, cols, r, end, a + t, tokens, out + t * out_stride,
                                  out_stride);
    }
}

}  // namespace
}  // namespace runnel::kernels::cpu
