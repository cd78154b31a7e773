// See scan.h. Decode is bound by the bytes of the states, each read once and written once; prefill by
// latency, because tokens are computed one after the other.
#include "kernels/cuda/scan/scan.h"

#include <cmath>

#include "kernels/cuda/runtime/device.h"
#include "kernels/cuda/runtime/math.h"
#include "kernels/cuda/runtime/softplus.h"

namespace runnel::kernels::cuda {

namespace {

DEVICE int64_t own_thread() {
    return int64_t{block_index()} * block_threads() + thread_index();
}
DEVICE int64_t all_threads() {
    return int64_t{block_count()} * block_threads();
}

// Calls body(sequence, unit) for this warp's share of the units of every sequence.
template <class Body>
DEVICE void for_warp_units(const ScanBatch &batch, int64_t units, Body body) {
    const int64_t all = batch.counts->sequences * units, step = all_threads() / 32;
    for (int64_t i = own_thread() / 32; i < all; i += step) body(batch.sequences[i / units], i % units);
}

DEVICE float *state_at(const ScanStates &states, int32_t slot) {
    return states.first + slot * states.stride;
}

// Iterates over the state writes of a sequence.
class Writes {
  public:
    DEVICE Writes(const ScanBatch &batch, const ScanSequence &s)
        : next_(batch.writes + s.first_write), left_(s.writes) {
        tokens_ = left_ > 0 ? next_->tokens : 0;
    }
    // Where the state after this many tokens is stored; null: nowhere.
    DEVICE float *after(int32_t tokens, const ScanStates &states) {
        if (tokens != tokens_) return nullptr;
        float *to = state_at(states, next_->slot);
        ++next_, --left_;
        tokens_ = left_ > 0 ? next_->tokens : 0;
        return to;
    }

  private:
    const ScanWrite *next_;
    int32_t left_, tokens_;
};

// Four neighbors of a row of `n` floats from element `i` on, zeros beyond its end. A null row is all zeros.
DEVICE void load_four(const float *row, int32_t i, int32_t n, float (&x)[4]) {
    if (row != nullptr && n % 4 == 0 && i < n) {
        const uint4 bits = ld128(row + i);
        x[0] = bits_float(bits.x), x[1] = bits_float(bits.y);
        x[2] = bits_float(bits.z), x[3] = bits_float(bits.w);
        return;
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = row != nullptr && i + e < n ? row[i + e] : 0.0f;
}

DEVICE void store_four(float *row, int32_t i, int32_t n, const float (&x)[4]) {
    if (n % 4 == 0) {
        if (i < n) st128(row + i, {float_bits(x[0]), float_bits(x[1]), float_bits(x[2]), float_bits(x[3])});
        return;
    }
#pragma unroll
    for (int e = 0; e < 4; ++e)
        if (i + e < n) row[i + e] = x[e];
}

struct Convolve {
    using Params = ShortConvParams;
    static constexpr const char *kName = "short convolution";
    static constexpr int kThreads = kScanThreads, kBlocks = 8;

    // The input at token `t` of the sequence; negative t: from the state, or 0 before the first token.
    static DEVICE float input(const Params &p, const ScanSequence &s, int32_t t, int32_t channel) {
        if (t >= 0) return p.in[(s.first + t) * p.in_stride + channel];
        if (s.state < 0) return 0.0f;
        return state_at(p.states, s.state)[(p.taps - 1 + t) * int64_t{p.width} + channel];
    }

    static DEVICE void token(const Params &p, int32_t token, int32_t channel) {
        const ScanSequence &s = p.batch.sequences[p.batch.sequence_of[token]];
        const int32_t first = token - s.first - p.taps + 1;
        float sum = p.weight[channel] * input(p, s, first, channel);
        for (int32_t j = 1; j < p.taps; ++j)
            sum = fma_rn(p.weight[j * int64_t{p.width} + channel], input(p, s, first + j, channel), sum);
        if (p.bias != nullptr) sum = sum + p.bias[channel];
        p.out[token * p.out_stride + channel] = p.silu ? silu_p(sum) : sum;
    }

    static DEVICE void run(const Params &p) {
        grid_dep_wait();
        grid_dep_trigger();
        const int64_t runs = (p.tokens + kConvTokens - 1) / kConvTokens;
        for (int64_t i = own_thread(); i < runs * p.width; i += all_threads()) {
            const auto first = static_cast<int32_t>(i / p.width) * kConvTokens;
            const int32_t end = first + kConvTokens < p.tokens ? first + kConvTokens : p.tokens;
            for (int32_t t = first; t < end; ++t) token(p, t, static_cast<int32_t>(i % p.width));
        }
        const int32_t rows = p.taps - 1;
        const int64_t kept = int64_t{p.batch.counts->writes} * rows * p.width;
        for (int64_t i = own_thread(); i < kept; i += all_threads()) {
            const int64_t row = i / p.width;
            const ScanWrite &write = p.batch.writes[row / rows];
            const auto j = static_cast<int32_t>(row % rows), channel = static_cast<int32_t>(i % p.width);
            state_at(p.states, write.slot)[j * int64_t{p.width} + channel] =
                input(p, p.batch.sequences[write.sequence], write.tokens - rows + j, channel);
        }
    }
};

struct PoolBlocks {
    using Params = SoftPoolParams;
    static constexpr const char *kName = "pooled blocks";
    static constexpr int kThreads = kScanThreads, kBlocks = 8;

    // The value, or with `scores` the score, of token `t` of the sequence; negative t: from the state.
    static DEVICE float input(const Params &p, const ScanSequence &s, bool scores, int32_t t,
                              int32_t channel) {
        if (t >= 0) {
            const int64_t token = s.first + t;
            return scores ? p.score[token * p.score_stride + channel]
                          : p.value[token * p.value_stride + channel];
        }
        if (s.past + t < 0) return 0.0f;  // before the first token
        return state_at(p.states,
                        s.state)[((scores ? p.rows - 1 : 0) + p.rows - 1 + t) * int64_t{p.all} + channel];
    }

    static DEVICE float pooled(const Params &p, const ScanSequence &s, int32_t t, int32_t channel) {
        const int32_t end = s.past + t + 1, begin = p.rows > end ? p.rows - end : 0;
        if (end % p.block != 0) return 0.0f;
        const auto channel_of = [&](int32_t j) {
            return p.all > p.width && j >= p.block ? channel + p.width : channel;
        };
        const auto score = [&](int32_t j) {
            return input(p, s, true, t - p.rows + 1 + j, channel_of(j)) +
                   p.bias[j % p.block * int64_t{p.all} + channel_of(j)];
        };
        float largest = score(begin), sum = 0, out = 0;
        for (int32_t j = begin + 1; j < p.rows; ++j) largest = fmaxf(largest, score(j));
        for (int32_t j = begin; j < p.rows; ++j) {
            const float weight = exp_p(score(j) - largest);
            sum += weight;
            out = fma_rn(weight, input(p, s, false, t - p.rows + 1 + j, channel_of(j)), out);
        }
        return out / sum;
    }

    static DEVICE void run(const Params &p) {
        grid_dep_wait();
        grid_dep_trigger();
        for (int64_t i = own_thread(); i < int64_t{p.tokens} * p.width; i += all_threads()) {
            const int64_t token = i / p.width;
            const auto channel = static_cast<int32_t>(i % p.width);
            const ScanSequence &s = p.batch.sequences[p.batch.sequence_of[token]];
            p.out[token * p.out_stride + channel] =
                pooled(p, s, static_cast<int32_t>(token) - s.first, channel);
        }
        const int32_t kept = p.rows - 1;
        const int64_t floats = 2 * int64_t{kept} * p.all;
        for (int64_t i = own_thread(); i < p.batch.counts->writes * floats; i += all_threads()) {
            const ScanWrite &write = p.batch.writes[i / floats];
            const int64_t row = i % floats / p.all;
            const auto j = static_cast<int32_t>(row % kept);
            state_at(p.states, write.slot)[i % floats] =
                input(p, p.batch.sequences[write.sequence], row >= kept, write.tokens - kept + j,
                      static_cast<int32_t>(i % p.all));
        }
    }
};

struct Gates {
    using Params = ScanGateParams;
    static constexpr const char *kName = "gates of scans";
    static constexpr int kThreads = kScanThreads, kBlocks = 8;

    static DEVICE void run(const Params &p) {
        grid_dep_wait();
        grid_dep_trigger();
        for (int64_t i = own_thread(); i < int64_t{p.tokens} * p.width; i += all_threads()) {
            const int64_t token = i / p.width;
            const auto channel = static_cast<int32_t>(i % p.width);
            float x = p.in[token * p.in_stride + channel];
            if (p.bias != nullptr) x = x + p.bias[channel];
            const float rate = p.rate != nullptr ? p.rate[channel / p.shared] : 0.0f;
            const float step = p.form == GateForm::Softplus ? softplus_p(x) : 0.0f;
            const float exponent = p.form == GateForm::Softplus  ? rate * step
                                   : p.form == GateForm::Sigmoid ? p.bound / (1.0f + exp_p(-(rate * x)))
                                                                 : -exp_p(x);
            if (p.step != nullptr) p.step[token * p.step_stride + channel] = step;
            if (p.decay != nullptr) p.decay[token * p.decay_stride + channel] = exp_p(exponent);
        }
    }
};

// Lane l of a column's eight lanes holds elements 32 r + 4 l to 32 r + 4 l + 3, r < kVectors. kGeneral: also with
// erase_read and erase_write, or with reads_before.
template <int kVectors, bool kGeneral>
struct ScanMatrices {
    using Params = LinearScanParams;
    static constexpr const char *kName = kGeneral ? "general linear scan" : "linear scan";
    static constexpr int kThreads = kScanThreads, kBlocks = kVectors > 4 ? 2 : kVectors > 2 ? 3 : 4;
    static constexpr int kLanes = 32 / kScanColumns;
    // Whether the next token's inputs are read while a token is computed: else the registers would not suffice.
    static constexpr bool kAhead = !kGeneral || kVectors <= 4;
    using Column = float[kVectors][4];

    struct Token {
        Column k, q;
        float v, decay, strength;
    };
    // A head of one sequence and the lane's column of it.
    struct Place {
        int32_t head, key_head, column;
        bool exists;  // the last warp may have fewer columns
        float fixed;  // the head's decay if there is no slot for it
    };

    static DEVICE void load(const float *from, int32_t n, Column &x) {
#pragma unroll
        for (int r = 0; r < kVectors; ++r)
            load_four(from, 4 * kLanes * r + 4 * (lane_index() % kLanes), n, x[r]);
    }

    static DEVICE float sum_of(const Column &a, const Column &b) {
        float sums[4] = {};
#pragma unroll
        for (int r = 0; r < kVectors; ++r)
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[e] = fma_rn(a[r][e], b[r][e], sums[e]);
        float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
#pragma unroll
        for (int mask = kLanes / 2; mask > 0; mask /= 2) sum = sum + shfl_xor(sum, mask);
        return sum;
    }

    static DEVICE void read(const Params &p, const Place &at, int64_t token, Token &x) {
        load(p.k + token * p.k_stride + int64_t{at.key_head} * p.dk, p.dk, x.k);
        load(p.q + token * p.q_stride + int64_t{at.key_head} * p.dk, p.dk, x.q);
        x.v = at.exists ? p.v[token * p.v_stride + int64_t{at.head} * p.dv + at.column] : 0.0f;
        x.decay =
            p.decay != nullptr && !p.channel_decay ? p.decay[token * p.decay_stride + at.head] : at.fixed;
        x.strength = p.strength != nullptr ? p.strength[token * p.strength_stride + at.head] : 1.0f;
    }

    static DEVICE void scale(const Params &p, const Place &at, int64_t token, float decay, Column &state) {
#pragma unroll
        for (int r = 0; r < kVectors; ++r) {
            float w[4] = {decay, decay, decay, decay};
            if (p.channel_decay)
                load_four(p.decay + token * p.decay_stride + int64_t{at.head} * p.dk,
                          4 * kLanes * r + 4 * (lane_index() % kLanes), p.dk, w);
#pragma unroll
            for (int e = 0; e < 4; ++e) state[r][e] = w[e] * state[r][e];
        }
    }

    static DEVICE const float *erase_row(const float *rows, int64_t stride, const Params &p, const Place &at,
                                         int64_t token) {
        return rows + token * stride + int64_t{at.key_head} * p.dk;
    }

    static DEVICE void add_scaled(const Column &x, float factor, Column &state) {
#pragma unroll
        for (int r = 0; r < kVectors; ++r)
#pragma unroll
            for (int e = 0; e < 4; ++e) state[r][e] = fma_rn(x[r][e], factor, state[r][e]);
    }

    // Decay, and erasing. Erase rows are read when they are needed: registers hold no more rows.
    static DEVICE void forget(const Params &p, const Place &at, int64_t token, float decay, Column &state) {
        if (kGeneral && p.erase_read != nullptr) {
            Column key;
            load(erase_row(p.erase_read, p.erase_read_stride, p, at, token), p.dk, key);
            const float erased = sum_of(state, key);
            scale(p, at, token, decay, state);
            load(erase_row(p.erase_write, p.erase_write_stride, p, at, token), p.dk, key);
            add_scaled(key, -erased, state);
        } else {
            scale(p, at, token, decay, state);
        }
    }

    static DEVICE void columns(const Params &p, const ScanSequence &s, int64_t unit) {
        const auto groups = (p.dv + kScanColumns - 1) / kScanColumns;
        const auto head = static_cast<int32_t>(unit / groups),
                   column = static_cast<int32_t>(unit % groups) * kScanColumns + lane_index() / kLanes;
        const Place at{head, p.neighbors ? head / (p.heads / p.key_heads) : head % p.key_heads, column,
                       column < p.dv, p.rate != nullptr ? exp_p(p.rate[head]) : 1.0f};
        const float skip = p.skip != nullptr ? p.skip[head] : 0.0f;
        const int64_t in_state = (int64_t{head} * p.dv + column) * p.dk;
        Column state;
        load(s.state >= 0 && at.exists ? state_at(p.states, s.state) + in_state : nullptr, p.dk, state);
        Writes writes(p.batch, s);
        Token now, next;
        if constexpr (kAhead) read(p, at, s.first, next);
        for (int32_t t = 0; t < s.count; ++t) {
            const int64_t token = s.first + t;
            if constexpr (kAhead) {
                now = next;
                if (t + 1 < s.count) read(p, at, token + 1, next);
            } else {
                read(p, at, token, now);
            }
            const float before = kGeneral && p.reads_before ? sum_of(state, now.q) : 0.0f;
            forget(p, at, token, now.decay, state);
            const float change = now.strength * (p.delta ? now.v - sum_of(state, now.k) : now.v);
            add_scaled(now.k, change, state);
            const float y = fma_rn(skip, now.v, kGeneral && p.reads_before ? before : sum_of(state, now.q));
            float *out = p.out + token * p.out_stride + int64_t{head} * p.dv;
            if (at.exists && lane_index() % kLanes == 0) out[column] = y;
            float *to = writes.after(t + 1, p.states);
            if (to == nullptr || !at.exists) continue;
#pragma unroll
            for (int r = 0; r < kVectors; ++r)
                store_four(to + in_state, 4 * kLanes * r + 4 * (lane_index() % kLanes), p.dk, state[r]);
        }
    }

    static DEVICE void run(const Params &p) {
        grid_dep_wait();
        grid_dep_trigger();
        const int64_t groups = (p.dv + kScanColumns - 1) / kScanColumns;
        for_warp_units(p.batch, p.heads * groups,
                       [&](const ScanSequence &s, int64_t unit) { columns(p, s, unit); });
    }
};

// Lane l of a channel's four lanes holds elements 16 r + 4 l to 16 r + 4 l + 3, r < kVectors.
template <int kVectors>
struct ScanChannels {
    using Params = SelectiveScanParams;
    static constexpr const char *kName = "selective scan";
    static constexpr int kThreads = kScanThreads, kBlocks = kVectors > 1 ? 3 : 8;
    static constexpr int kLanes = 32 / kScanChannels;

    struct Token {
        float b[kVectors][4], c[kVectors][4];
        float x, dt;
    };

    static DEVICE int element(int r) { return 4 * kLanes * r + 4 * (lane_index() % kLanes); }

    static DEVICE void read(const Params &p, int64_t token, int32_t channel, bool exists, Token &x) {
#pragma unroll
        for (int r = 0; r < kVectors; ++r) {
            load_four(p.b + token * p.b_stride, element(r), p.n, x.b[r]);
            load_four(p.c + token * p.c_stride, element(r), p.n, x.c[r]);
        }
        x.x = exists ? p.x[token * p.x_stride + channel] : 0.0f;
        x.dt = exists ? p.dt[token * p.dt_stride + channel] : 0.0f;
    }

    static DEVICE void channels(const Params &p, const ScanSequence &s, int64_t unit) {
        const auto channel = static_cast<int32_t>(unit) * kScanChannels + lane_index() / kLanes;
        const bool exists = channel < p.width;
        const int64_t in_state = int64_t{channel} * p.n;
        const float *from = s.state >= 0 && exists ? state_at(p.states, s.state) + in_state : nullptr;
        const float skip = exists ? p.skip[channel] : 0.0f;
        float state[kVectors][4], rate[kVectors][4];
#pragma unroll
        for (int r = 0; r < kVectors; ++r) {
            load_four(from, element(r), p.n, state[r]);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int64_t i = element(r) + e;
                rate[r][e] = exists && i < p.n ? p.rate[i * p.width + channel] : 0.0f;
            }
        }
        Writes writes(p.batch, s);
        Token now, next;
        read(p, s.first, channel, exists, next);
        for (int32_t t = 0; t < s.count; ++t) {
            const int64_t token = s.first + t;
            now = next;
            if (t + 1 < s.count) read(p, token + 1, channel, exists, next);
            const float in = now.dt * now.x;
            float y = 0;
#pragma unroll
            for (int r = 0; r < kVectors; ++r)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    state[r][e] = fma_rn(exp_p(now.dt * rate[r][e]), state[r][e], in * now.b[r][e]);
                    y = fma_rn(state[r][e], now.c[r][e], y);
                }
#pragma unroll
            for (int mask = kLanes / 2; mask > 0; mask /= 2) y = y + shfl_xor(y, mask);
            if (exists && lane_index() % kLanes == 0)
                p.out[token * p.out_stride + channel] = fma_rn(skip, now.x, y);
            float *to = writes.after(t + 1, p.states);
            if (to == nullptr || !exists) continue;
#pragma unroll
            for (int r = 0; r < kVectors; ++r) store_four(to + in_state, element(r), p.n, state[r]);
        }
    }

    static DEVICE void run(const Params &p) {
        grid_dep_wait();
        grid_dep_trigger();
        for_warp_units(p.batch, (p.width + kScanChannels - 1) / kScanChannels,
                       [&](const ScanSequence &s, int64_t unit) { channels(p, s, unit); });
    }
};

}  // namespace

Kernel<SoftPoolParams> soft_pool_kernel() {
    return kernel_of<PoolBlocks>();
}

Kernel<ShortConvParams> short_conv_kernel() {
    return kernel_of<Convolve>();
}

Kernel<ScanGateParams> scan_gate_kernel() {
    return kernel_of<Gates>();
}

namespace {

template <bool kGeneral>
Kernel<LinearScanParams> linear_scan_kernel_for(int32_t dk) {
    if (dk <= 64) return kernel_of<ScanMatrices<2, kGeneral>>();
    return dk <= 128 ? kernel_of<ScanMatrices<4, kGeneral>>() : kernel_of<ScanMatrices<8, kGeneral>>();
}

}  // namespace

Kernel<LinearScanParams> linear_scan_kernel(int32_t dk, bool general) {
    return general ? linear_scan_kernel_for<true>(dk) : linear_scan_kernel_for<false>(dk);
}

Kernel<SelectiveScanParams> selective_scan_kernel(int32_t n) {
    return n <= 16 ? kernel_of<ScanChannels<1>>() : kernel_of<ScanChannels<4>>();
}

}  // namespace runnel::kernels::cuda
