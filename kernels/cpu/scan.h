// The arithmetic of the recurrent steps (ShortConv, SoftPool, ScanGate, LinearScan, SelectiveScan in recurrent_steps.h).
//
// Prefill and decode use the same sequential form: a token's arithmetic does not depend on how many tokens
// are computed with it, so every chunking gives the same bits. As in vector.h, all tables compute bit-equal
// results; the scalar one is the definition.
//
// States are stored in blocks of kScanColumns columns, so that the state that one unit of work carries from
// token to token is contiguous and stays in L1: block b of a matrix [rows][cols] begins at b * kScanColumns *
// rows, and its row stride is the block's own width.
#pragma once

#include <cstdint>

#include "kernels/program.h"

namespace runnel::kernels::cpu {

inline constexpr int64_t kScanColumns = 32;
inline constexpr int64_t kMostTaps = 16;       // K of ShortConv
inline constexpr int64_t kMostKeyDims = 1024;  // dk of LinearScan, n of SelectiveScan

// Tokens of one sequence, one head and one block of columns. Pointers are to the first token; strides are in
// floats from token to token.
struct LinearScanPiece {
    const float *q, *k;                     // [dk]
    const float *v;                         // [cols]
    const float *decay;                     // [1], or [dk] with channel_decay
    const float *strength;                  // [1]; null: 1
    const float *erase_read, *erase_write;  // [dk]; null: none
    float *out;                             // [cols]
    int64_t qk_stride, v_stride, decay_stride, strength_stride, erase_stride, out_stride;
    int64_t dk, cols;
    float fixed_decay, skip;  // the decay if `decay` is null; the factor of v in out
    bool channel_decay, delta, reads_before;
    bool streams;  // this batch does not read the state that is written: it need not stay in the caches
};

struct SelectiveScanPiece {
    const float *x, *dt;        // [cols]
    const float *b, *c;         // [n]
    const float *rate, *skip;   // [n] rows `rate_stride` apart, [cols]
    float *out;                 // [cols]
    int64_t stride, bc_stride;  // of x, dt and out; of b and c
    int64_t rate_stride, n, cols;
};

struct ScanKernels {
    // out[c] = act(sum_j weight[j * weight_stride + c] * rows[j][c] + bias[c]), j < taps: a product, then
    // fmas in ascending order. bias may be null.
    void (*conv)(const float *const *rows, int64_t taps, const float *weight, int64_t weight_stride,
                 const float *bias, bool silu, int64_t n, float *out) noexcept;

    // SoftPool of n channels over `rows` > 0 rows: s_j = scores[j][c] + bias[j][c], m the largest of them, then in ascending
    // order p = exp(s_j - m), l = l + p, o = fma(p, values[j][c], o), from 0. out[c] = o / l.
    void (*pool)(const float *const *values, const float *const *scores, const float *const *bias,
                 int64_t rows, int64_t n, float *out) noexcept;

    // ScanGate for n neighbors; ln(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|)), with log1p(t) = 2 atanh(t /
    // (2 + t)) by its series up to the 15th power. bias, step and decay may be null. rate: [n], or a
    // single number with one_rate.
    void (*gate)(ScanGate::Form form, const float *in, const float *bias, const float *rate, bool one_rate,
                 float bound, int64_t n, float *step, float *decay) noexcept;

    // Advances the state `from` (null: zeros) by `tokens` tokens to the state `to`, which is not `from`. With
    // kw[i] = w[i] * k[i], qw[i] = w[i] * q[i], and separate sums over even and odd i, each by ascending fmas:
    //   u = sum kw[i] S[i];  p = sum qw[i] S[i];  d = b * (v - u) or b * v;  out = fma(q . k, d, p);
    //   S[i] = fma(k[i], d, w[i] * S[i]);  out = fma(skip, v, out) if skip is not 0.
    // With erase: e = -(sum erase_read[i] S[i]);  out = fma(q . erase_write, e, fma(q . k, d, p));
    //   S[i] = fma(k[i], d, fma(erase_write[i], e, w[i] * S[i])).
    // With reads_before, qw[i] = q[i], and p is out before the skip.
    // (q . k and q . erase_write are summed in the lanes of vector.h.)
    void (*linear)(const LinearScanPiece &piece, int64_t tokens, const float *from, float *to) noexcept;

    // Likewise advances a SelectiveScan: h = fma(exp(dt * rate), h, (dt * x) * b[i]), y = fma(h, c[i], y)
    // over ascending i, starting with y = skip * x.
    void (*selective)(const SelectiveScanPiece &piece, int64_t tokens, const float *from, float *to) noexcept;
};

extern const ScanKernels kScanScalar, kScanAvx2, kScanAvx512;

}  // namespace runnel::kernels::cpu
