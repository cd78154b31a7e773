// The functions of scan.h, written once over a type of lanes and compiled once per instruction set.
#pragma once

#include <cstdint>

#include "kernels/cpu/scan.h"
#include "kernels/cpu/vector_body.h"

namespace runnel::kernels::cpu {
namespace {

// (No functions of the standard library: this code is compiled for several instruction sets.)
template <typename L>
inline int lanes_left(int64_t n) {
    return n < L::kWidth ? static_cast<int>(n) : L::kWidth;
}

template <typename L>
void conv(const float *const *rows, int64_t taps, const float *weight, int64_t weight_stride,
          const float *bias, bool silu, int64_t n, float *out) noexcept {
    for (int64_t c = 0; c < n; c += L::kWidth) {
        const int count = lanes_left<L>(n - c);
        auto sum = L::mul(L::load_n(weight + c, count), L::load_n(rows[0] + c, count));
        for (int64_t j = 1; j < taps; ++j)
            sum =
                L::fma(L::load_n(weight + j * weight_stride + c, count), L::load_n(rows[j] + c, count), sum);
        if (bias) sum = L::add(sum, L::load_n(bias + c, count));
        if (silu) sum = logistic_share<L>(sum, L::sub(L::zero(), sum));
        L::store_n(out + c, sum, count);
    }
}

template <typename L>
void pool(const float *const *values, const float *const *scores, const float *const *bias, int64_t rows,
          int64_t n, float *out) noexcept {
    for (int64_t c = 0; c < n; c += L::kWidth) {
        const int count = lanes_left<L>(n - c);
        const auto score = [&](int64_t j) {
            return L::add(L::load_n(scores[j] + c, count), L::load_n(bias[j] + c, count));
        };
        auto m = score(0), sum = L::zero(), o = L::zero();
        for (int64_t j = 1; j < rows; ++j) m = L::max(m, score(j));
        for (int64_t j = 0; j < rows; ++j) {
            const auto p = exponential<L>(L::sub(score(j), m));
            sum = L::add(sum, p);
            o = L::fma(p, L::load_n(values[j] + c, count), o);
        }
        L::store_n(out + c, L::div(o, sum), count);
    }
}

template <typename L>
inline typename L::Float softplus(typename L::Float x) {
    const auto minus = L::sub(L::zero(), x), positive = L::max(L::zero(), x);
    const auto t = exponential<L>(L::min(x, minus));
    const auto s = L::div(t, L::add(L::set(2.0f), t)), square = L::mul(s, s);
    auto p = L::set(2.0f / 15);
    p = L::fma(p, square, L::set(2.0f / 13));
    p = L::fma(p, square, L::set(2.0f / 11));
    p = L::fma(p, square, L::set(2.0f / 9));
    p = L::fma(p, square, L::set(2.0f / 7));
    p = L::fma(p, square, L::set(2.0f / 5));
    p = L::fma(p, square, L::set(2.0f / 3));
    p = L::fma(p, square, L::set(2.0f));
    return L::fma(p, s, positive);
}

template <typename L>
void scan_gate(ScanGate::Form form, const float *in, const float *bias, const float *rate, bool one_rate,
               float bound, int64_t n, float *step, float *decay) noexcept {
    for (int64_t c = 0; c < n; c += L::kWidth) {
        const int count = lanes_left<L>(n - c);
        auto x = L::load_n(in + c, count);
        if (bias) x = L::add(x, L::load_n(bias + c, count));
        const auto a = !rate ? L::zero() : one_rate ? L::set(*rate) : L::load_n(rate + c, count);
        if (form == ScanGate::Form::Exponential) {
            L::store_n(decay + c, exponential<L>(L::sub(L::zero(), exponential<L>(x))), count);
            continue;
        }
        if (form == ScanGate::Form::Sigmoid) {
            const auto share = logistic_share<L>(L::set(bound), L::sub(L::zero(), L::mul(a, x)));
            if (decay) L::store_n(decay + c, exponential<L>(share), count);
            continue;
        }
        const auto s = softplus<L>(x);
        if (step) L::store_n(step + c, s, count);
        if (decay) L::store_n(decay + c, exponential<L>(L::mul(a, s)), count);
    }
}

// What is read from S before the update of a token: nothing, S^T (w k), or S^T erase_read.
enum class ScanRead { None, Keys, Erase };

// The inputs of one token to the pass over S, per key channel.
struct ScanRow {
    const float *k, *erase_write;
    float read[kMostKeyDims], qw[kMostKeyDims], w[kMostKeyDims];
    float strength, dot, erase_dot;
};

// a . b, n numbers each
template <typename L8>
inline float scan_dot(const float *a, const float *b, int64_t n) {
    return sum_in_lanes<L8>(a, n, [&](auto v, auto lanes, int count) {
        const auto other = L8::load_n(b, count);
        b += count;
        return L8::fma(v, other, lanes);
    });
}

template <typename L, typename L8, ScanRead kRead>
inline void read_row(const LinearScanPiece &p, int64_t t, ScanRow &row) {
    const float *q = p.q + t * p.qk_stride;
    row.k = p.k + t * p.qk_stride;
    const float *decay = p.decay ? p.decay + t * p.decay_stride : &p.fixed_decay;
    for (int64_t i = 0; i < p.dk; i += L::kWidth) {
        const int count = lanes_left<L>(p.dk - i);
        const auto w = p.channel_decay ? L::load_n(decay + i, count) : L::set(*decay);
        L::store_n(row.w + i, w, count);
        if (kRead != ScanRead::Erase)
            L::store_n(row.read + i, L::mul(w, L::load_n(row.k + i, count)), count);
        else
            L::store_n(row.read + i, L::load_n(p.erase_read + t * p.erase_stride + i, count), count);
        const auto query = L::load_n(q + i, count);
        L::store_n(row.qw + i, p.reads_before ? query : L::mul(w, query), count);
    }
    row.dot = p.reads_before ? 0 : scan_dot<L8>(q, row.k, p.dk);
    if (kRead == ScanRead::Erase) {
        row.erase_write = p.erase_write + t * p.erase_stride;
        row.erase_dot = p.reads_before ? 0 : scan_dot<L8>(q, row.erase_write, p.dk);
    }
    row.strength = p.strength ? p.strength[t * p.strength_stride] : 1.0f;
}

// Two registers of columns; only the first `count` columns exist.
template <typename L>
struct ScanPair {
    using Float = typename L::Float;
    int counts[2];
    ScanPair(int64_t count)
        : counts{lanes_left<L>(count), count > L::kWidth ? lanes_left<L>(count - L::kWidth) : 0} {}
    Float load(const float *x, int r) const { return L::load_n(x + r * L::kWidth, counts[r]); }
    void store(float *x, Float value, int r) const { L::store_n(x + r * L::kWidth, value, counts[r]); }
    void store_state(float *x, Float value, int r) const { store(x, value, r); }
    void fetch(const float *, int64_t, int) const {}
};

// Both registers are full: no masks.
template <typename L>
struct FullPair {
    using Float = typename L::Float;
    Float load(const float *x, int r) const { return L::load(x + r * L::kWidth); }
    void store(float *x, Float value, int r) const { L::store(x + r * L::kWidth, value); }
    void store_state(float *x, Float value, int r) const { store(x, value, r); }
    void fetch(const float *, int64_t, int) const {}
};

// Likewise, for LinearScanPiece::streams: the state goes past the caches, and the next block's state is fetched into L2 while
// this one is written.
template <typename L>
struct StreamPair : FullPair<L> {
    void store_state(float *x, typename L::Float value, int r) const { L::stream(x + r * L::kWidth, value); }
    void fetch(const float *x, int64_t ahead, int r) const {
        __builtin_prefetch(x + ahead + r * L::kWidth, 0, 2);
    }
};

// One pass over S for two registers of columns: applies the update of the previous token (`before`, d and, to
// erase, e) and computes the sums of the current token (`now`). Either token may be null: there is none.
template <typename L, ScanRead kRead, typename Pair>
inline void scan_pass(const LinearScanPiece &p, const Pair &pair, const ScanRow *before,
                      const typename L::Float *d, const typename L::Float *e, const float *from, float *to,
                      const ScanRow *now, typename L::Float *u, typename L::Float *sum) {
    using Float = typename L::Float;
    Float us[2][2], ps[2][2];
    for (int odd = 0; odd < 2; ++odd)
        for (int r = 0; r < 2; ++r) us[odd][r] = ps[odd][r] = L::zero();
    const auto row = [&](int64_t i, int odd) {
        Float s[2];
        for (int r = 0; r < 2; ++r) s[r] = from ? pair.load(from + i * p.cols, r) : L::zero();
        if (before) {
            const Float w = L::set(before->w[i]), k = L::set(before->k[i]);
            for (int r = 0; r < 2; ++r) {
                s[r] = L::mul(w, s[r]);
                if (kRead == ScanRead::Erase) s[r] = L::fma(L::set(before->erase_write[i]), e[r], s[r]);
                s[r] = L::fma(k, d[r], s[r]);
                pair.store_state(to + i * p.cols, s[r], r);
                if (!now) pair.fetch(from, (p.dk + i) * p.cols, r);
            }
        }
        if (now) {
            const Float key = L::set(now->read[i]), qw = L::set(now->qw[i]);
            for (int r = 0; r < 2; ++r) {
                if (kRead != ScanRead::None) us[odd][r] = L::fma(key, s[r], us[odd][r]);
                ps[odd][r] = L::fma(qw, s[r], ps[odd][r]);
            }
        }
    };
    int64_t i = 0;
    for (; i + 2 <= p.dk; i += 2) row(i, 0), row(i + 1, 1);
    if (i < p.dk) row(i, 0);
    if (!now) return;
    for (int r = 0; r < 2; ++r) {
        if (kRead != ScanRead::None) u[r] = L::add(us[0][r], us[1][r]);
        sum[r] = L::add(ps[0][r], ps[1][r]);
    }
}

template <typename L, typename L8, ScanRead kRead, typename Pair>
inline void scan_columns(const LinearScanPiece &p, const Pair &pair, int64_t at, int64_t tokens,
                         const float *from, float *to) {
    using Float = typename L::Float;
    ScanRow rows[2];
    Float u[2], sum[2], d[2], e[2] = {L::zero(), L::zero()};
    const float *source = from ? from + at : nullptr;
    for (int64_t t = 0; t < tokens; ++t) {
        ScanRow &now = rows[t % 2];
        read_row<L, L8, kRead>(p, t, now);
        scan_pass<L, kRead>(p, pair, t > 0 ? &rows[(t + 1) % 2] : nullptr, d, e, source, to + at, &now, u,
                            sum);
        if (t > 0) source = to + at;
        const float *v = p.v + t * p.v_stride + at;
        float *out = p.out + t * p.out_stride + at;
        const Float strength = L::set(now.strength), dot = L::set(now.dot);
        for (int r = 0; r < 2; ++r) {
            const Float value = pair.load(v, r);
            d[r] = L::mul(strength, kRead == ScanRead::Keys ? L::sub(value, u[r]) : value);
            Float y = L::fma(dot, d[r], sum[r]);
            if (kRead == ScanRead::Erase) {
                e[r] = L::sub(L::zero(), u[r]);
                y = L::fma(L::set(now.erase_dot), e[r], y);
            }
            if (p.skip != 0) y = L::fma(L::set(p.skip), value, y);
            pair.store(out, y, r);
        }
    }
    scan_pass<L, kRead>(p, pair, &rows[(tokens + 1) % 2], d, e, source, to + at, nullptr, u, sum);
}

inline bool is_aligned(const float *state) {
    return reinterpret_cast<uintptr_t>(state) % 64 == 0;
}

template <typename L, typename L8>
void linear_scan(const LinearScanPiece &p, int64_t tokens, const float *from, float *to) noexcept {
    constexpr int64_t kStep = 2 * L::kWidth;
    const auto columns = [&]<ScanRead kRead>() {
        int64_t at = 0;
        if (p.streams && tokens == 1 && from && p.cols == kScanColumns && is_aligned(to)) {
            for (; at < p.cols; at += kStep)
                scan_columns<L, L8, kRead>(p, StreamPair<L>(), at, tokens, from, to);
            L::end_stream();
        }
        for (; at + kStep <= p.cols; at += kStep)
            scan_columns<L, L8, kRead>(p, FullPair<L>(), at, tokens, from, to);
        if (at < p.cols) scan_columns<L, L8, kRead>(p, ScanPair<L>(p.cols - at), at, tokens, from, to);
    };
    if (p.erase_read)
        columns.template operator()<ScanRead::Erase>();
    else if (p.delta)
        columns.template operator()<ScanRead::Keys>();
    else
        columns.template operator()<ScanRead::None>();
}

template <typename L>
void selective_scan(const SelectiveScanPiece &p, int64_t tokens, const float *from, float *to) noexcept {
    for (int64_t t = 0; t < tokens; ++t, from = to)
        for (int64_t at = 0; at < p.cols; at += L::kWidth) {
            const int count = lanes_left<L>(p.cols - at);
            const auto x = L::load_n(p.x + t * p.stride + at, count),
                       dt = L::load_n(p.dt + t * p.stride + at, count), in = L::mul(dt, x);
            const float *b = p.b + t * p.bc_stride, *c = p.c + t * p.bc_stride;
            auto y = L::mul(L::load_n(p.skip + at, count), x);
            for (int64_t i = 0; i < p.n; ++i) {
                const auto rate = L::load_n(p.rate + i * p.rate_stride + at, count);
                const auto before = from ? L::load_n(from + i * p.cols + at, count) : L::zero();
                const auto h = L::fma(exponential<L>(L::mul(dt, rate)), before, L::mul(in, L::set(b[i])));
                L::store_n(to + i * p.cols + at, h, count);
                y = L::fma(h, L::set(c[i]), y);
            }
            L::store_n(p.out + t * p.stride + at, y, count);
        }
}

template <typename L, typename L8>
constexpr ScanKernels scan_table() {
    return {.conv = conv<L>,
            .pool = pool<L>,
            .gate = scan_gate<L>,
            .linear = linear_scan<L, L8>,
            .selective = selective_scan<L>};
}

}  // namespace
}  // namespace runnel::kernels::cpu
