// The recurrent steps of a Program (program.h). They carry a state of fixed size from token to token; `state` is an index into
// Program::state_layers. A new sequence starts from a state of zeros. A token's arithmetic does not depend on the rest of the
// batch, so the state after a token does not depend on how the tokens were split into batches. (ScanGate has no state.)
#pragma once

#include <cstdint>

#include "kernels/step.h"

namespace runnel::kernels {

// A causal convolution per channel: out[t][c] = sum_j weight[j][c] * in[t - K + 1 + j][c] (+ bias[c]), j < K,
// then SiLU if `silu`. State: the last K - 1 rows of `in`. in and out differ.
struct ShortConv {
    Slot in, out;
    WeightId weight;            // F32, [K][width], K > 1
    WeightId bias = kNoWeight;  // F32, [1][width]
    bool silu = false;
    int32_t state = -1;  // (K - 1) * width floats
    int32_t layer = -1;

    static constexpr bool kMixesTokens = true;
    void describe(auto &v) const {
        v.reads(in), v.writes(out);
        v.vector(weight, Use{}), v.vector(bias, Use{});
        v.state(state);
    }
};

// Pools blocks of tokens. A token at position p = block - 1, 2 * block - 1, ... ends a block and gets, channel by channel, a
// mean of values v weighted by the softmax of scores s:
//   out[t][c] = sum_j exp(s_j) v_j / sum_j exp(s_j)
// over the tokens j of its block, in the order of positions, with s_j = score[j][c] + bias[j][c] and v_j = value[j][c].
// Rows of `value` and `score` that are twice as wide as `out` have a second half: then the sum is over the tokens of the block
// before, if there is one, with the first half of their rows and of the bias, and of the block itself, with the second
// half. Other tokens get zeros. Every sequence begins at position 0.
// State: the values of the last `rows() - 1` tokens, then their scores. (The compressors of DeepSeek-V4, 2026.)
struct SoftPool {
    static constexpr int32_t kMostRows = 512;  // rows()
    Slot value, score;                         // [t][width], or [t][2 * width]
    Slot out;                                  // [t][width]
    WeightId bias;                             // F32, [block][width of score]
    int32_t block;
    bool overlaps = false;  // the rows have a second half
    int32_t state = -1;     // (rows() - 1) * 2 * width of score floats
    int32_t layer = -1;

    int32_t rows() const { return overlaps ? 2 * block : block; }  // that a mean is over

    static constexpr bool kMixesTokens = true;
    void describe(auto &v) const {
        v.reads(value), v.reads(score), v.writes(out);
        v.vector(bias, Use{});
        v.state(state);
    }
};

// The step sizes and decays of a scan from its raw gates, element by element, with x = in[t] + bias:
//   Softplus: step = ln(1 + exp(x)); decay = exp(rate * step);
//   Sigmoid:  decay = exp(bound / (1 + exp(-rate * x)));
//   Exponential:  decay = exp(-exp(x))
struct ScanGate {
    enum class Form { Softplus, Sigmoid, Exponential };
    Slot in;
    Slot step = kNoSlot, decay = kNoSlot;  // same width as `in`; may be `in`
    WeightId bias = kNoWeight;             // F32, [1][width]
    WeightId rate = kNoWeight;             // F32, [1][n], with decay; one value for each width / n neighbors
    Form form = Form::Softplus;
    float bound = 0;
    int32_t layer = -1;

    static constexpr bool kMixesTokens = false;
    void describe(auto &v) const {
        v.reads(in), v.writes(step), v.writes(decay);
        v.vector(bias, Use{}), v.vector(rate, Use{});
    }
};

// Linear attention with a matrix S [dk][dv] per head. For each token, with w = decay and b = strength:
//   S <- diag(w) S;  d = b * (v - S^T k) if `delta`, else b * v;  S <- S + k d^T;  out = S^T q (+ skip * v)
// With erase_read and erase_write, S <- diag(w) S - erase_write (S^T erase_read)^T is the first of these. With
// reads_before, out is S^T q of the state before the token.
// (Gated delta rule: Yang et al. 2024; decay per key channel: Kimi Linear 2025; erase: the removal and
// replacement keys of RWKV-7, Peng et al. 2025. Without delta: Mamba-2's scan, Dao & Gu 2024, with q = C, k = B,
// v = x, and lightning attention, Qin et al. 2024.)
struct LinearScan {
    Slot q, k;                                         // [t][key_heads * dk]
    Slot v, out;                                       // [t][heads * dv]; they differ
    Slot decay = kNoSlot;                              // [t][heads], or [t][heads * dk]: one per key channel
    Slot strength = kNoSlot;                           // [t][heads]; none: 1
    Slot erase_read = kNoSlot, erase_write = kNoSlot;  // like k; both or neither, and not with `delta`
    WeightId rate = kNoWeight;                         // F32, [1][heads]: without `decay`, w = exp(rate)
    WeightId skip = kNoWeight;                         // F32, [1][heads]
    int32_t heads, key_heads, dk, dv;
    bool neighbors = false;  // head h uses key head h / (heads / key_heads), else h % key_heads
    bool delta = false, reads_before = false;
    int32_t state = -1;  // heads * dk * dv floats, in the device's own layout
    int32_t layer = -1;

    static constexpr bool kMixesTokens = true;
    void describe(auto &visitor) const {
        for (const Slot slot : {q, k, v, decay, strength, erase_read, erase_write}) visitor.reads(slot);
        visitor.writes(out);
        visitor.vector(rate, Use{}), visitor.vector(skip, Use{});
        visitor.state(state);
    }
};

// The scan of Mamba-1 (Gu & Dao 2023). Per channel c, h has n elements; for each token:
//   h[i] <- exp(dt[c] * rate[i][c]) * h[i] + dt[c] * x[c] * b[i];  out[c] = sum_i h[i] * c[i] + skip[c] * x[c]
struct SelectiveScan {
    Slot x, dt, out;     // [t][width]; out differs from the others
    Slot b, c;           // [t][n]
    WeightId rate;       // F32, [n][width]
    WeightId skip;       // F32, [1][width]
    int32_t state = -1;  // n * width floats, in the device's own layout
    int32_t layer = -1;

    static constexpr bool kMixesTokens = true;
    void describe(auto &v) const {
        for (const Slot slot : {x, dt, b, c}) v.reads(slot);
        v.writes(out);
        v.vector(rate, Use{}), v.vector(skip, Use{});
        v.state(state);
    }
};

}  // namespace runnel::kernels
