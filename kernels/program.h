// What a model computes: a flat list of steps that every device can execute.
//
// A model family does not implement a forward pass, it emits one as a Program. A Program works on
// *slots*: named activations of shape [tokens][width] in float32, where `tokens` is the size of the
// current batch (a prefill chunk, one decoded token, or drafts to verify). Steps read and write whole
// slots, in order. A Program does not depend on the batch: positions, sequence lengths and block tables
// come with the Batch (backend.h). A device can therefore plan, fuse or capture the list once and run it
// for every batch.
//
// Shapes: a Weight is [rows][cols], row-major, one row per output element, quantized along cols.
// Conventions are ggml's: y = W x, GQA maps query head h to K/V head h / (heads / kv_heads).
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "gguf/block.h"

namespace runnel::kernels {

using Slot = int32_t;  // index into Program::slots
inline constexpr Slot kNoSlot = -1;

// A matrix (or a vector: rows == 1); see gguf/block.h for the layouts. Its bytes are in the mapped file, or
// in Program::constants if a family computes them.
struct Weight {
    std::string name;  // of the tensor; used in messages and profiles
    gguf::Type type;
    int64_t rows, cols;
    const std::byte *data;
    int64_t count = 1;  // matrices of this shape, one per expert or head
    size_t stride = 0;  // bytes from one matrix to the next; 0: they are adjacent
    const std::byte *matrix(int64_t index) const {
        return data + (stride > 0 ? stride : matrix_bytes()) * static_cast<size_t>(index);
    }
    size_t matrix_bytes() const { return gguf::row_bytes(type, cols) * static_cast<size_t>(rows); }
    size_t bytes() const { return matrix_bytes() * static_cast<size_t>(count); }
};
using WeightId = int32_t;  // index into Program::weights
inline constexpr WeightId kNoWeight = -1;

// --- steps -----------------------------------------------------------------------------------------------
// Every step has
//   int32_t layer       the number of the model layer it belongs to, or -1; the steps of a layer are adjacent
//   describe(visitor)   reports to a StepVisitor what the step reads, writes and keeps
//   kMixesTokens        whether a token's output depends on other tokens of its sequence
// Everything else that depends on the kind of step is derived from these (kernels/steps.h).

// How much of a weight a step reads for one token: all of it, or the matrices of some
// experts.
struct Use {
    int32_t experts = 0;      // number of experts read; 0: the whole weight
    WeightId of = kNoWeight;  // with experts: a weight with one matrix per expert
    bool logit_rows = false;  // only for tokens whose logits are requested
};

// A layer of the KV cache that a step reads.
struct CacheUse {
    int32_t cache;       // index into Program::cache_layers
    bool appends;        // false: another step appends the cells
    int32_t window;      // number of cells a token attends to; 0: all
    int32_t sink_cells;  // number of attention-sink cells, the first of the sequence
};

// Receives what a step describes. A visitor derives from this and hides the functions it needs. Slots,
// weights and ropes may be kNoSlot, kNoWeight and -1.
struct StepVisitor {
    void reads(Slot) {}  // also called for a slot that the step writes only in part
    void writes(Slot) {}
    void row(WeightId) {}          // one row of a table, chosen by the token's id or position
    void matrix(WeightId, Use) {}  // a matrix multiplied with the activations of each token
    void vector(WeightId, Use) {}  // an F32 vector
    void rope(int32_t) {}          // index into Program::ropes
    void cache(const CacheUse &) {}
    void state(int32_t) {}  // index into Program::state_layers
};

// out[t] = scale * table[token[t]] (+ positions[min(position[t], rows - 1)])
struct Embed {
    WeightId table;
    Slot out;
    float scale = 1;
    WeightId positions = kNoWeight;  // learned position embeddings, [positions][width]
    int32_t layer = -1;

    static constexpr bool kMixesTokens = false;
    void describe(auto &tell) const { tell.writes(out), tell.row(table), tell.row(positions); }
};

// out[t] = scale * (norm(in[t]) (+ add[t])), where norm() takes the whole row, or each of `parts` equal
// slices of the row separately:
//   Rms:   weight * x / sqrt(mean(x^2) + eps) (+ bias)                      (Zhang & Sennrich 2019)
//   Layer: weight * (x - m) / sqrt(mean((x - m)^2) + eps) (+ bias), m = mean(x)    (Ba et al. 2016)
// out may be the same slot as in or add, or as both.
struct Norm {
    enum class Kind { Rms, Layer };
    Slot in, out;
    WeightId weight;  // F32, [1][width] or [1][width / parts] shared by all slices; kNoWeight: ones
    float eps;
    Kind kind = Kind::Rms;
    WeightId bias = kNoWeight;  // F32, of the same size as weight
    Slot add = kNoSlot;         // the residual stream, for a norm after a block
    int32_t parts = 1;
    float scale = 1;
    int32_t layer = -1;

    static constexpr bool kMixesTokens = false;
    void describe(auto &tell) const {
        tell.reads(in), tell.reads(add), tell.writes(out);
        tell.vector(weight, Use{}), tell.vector(bias, Use{});
    }
};

// For every part: out[t] = scale * (W in[t] + bias) + add[t]. All parts read the same input, so a device can
// quantize it once. `add` may be the same slot as `out` (a residual stream updated in place).
struct Linear {
    struct Part {
        WeightId weight;
        WeightId bias;  // [1][rows], F32, or kNoWeight
        Slot out;
        Slot add;  // or kNoSlot
        float scale = 1;
    };
    Slot in;
    std::vector<Part> parts;
    int32_t layer = -1;

    static constexpr bool kMixesTokens = false;
    void describe(auto &tell) const {
        tell.reads(in);
        for (const Part &part : parts) tell.reads(part.add), tell.writes(part.out);
        for (const Part &part : parts) tell.matrix(part.weight, Use{}), tell.vector(part.bias, Use{});
    }
};

// Equal slices of a row: slice i begins at first + i * stride. A stride of 0 repeats one slice.
struct StridedSlices {
    int64_t first = 0, stride = 0;
};

// For every head i: slice i of out[t] = W_i (slice i of in[t]). Multi-head latent attention moves these
// matrices from keys and values to queries and outputs (DeepSeek-V2, 2024).
struct HeadLinear {
    Slot in, out;
    StridedSlices from, to;
    WeightId weight;  // count = heads, [width of an output slice][width of an input slice]
    int32_t layer = -1;

    static constexpr bool kMixesTokens = false;
    void describe(auto &tell) const {
        tell.reads(in), tell.reads(out), tell.writes(out);
        tell.matrix(weight, Use{});
    }
};

// For every i < count: slice i of out[t] = slice i of in[t], `width` floats each. in and out differ.
struct Copy {
    Slot in, out;
    StridedSlices from, to;
    int32_t count = 1;
    int64_t width;
    int32_t layer = -1;

    static constexpr bool kMixesTokens = false;
    void describe(auto &tell) const { tell.reads(in), tell.reads(out), tell.writes(out); }
};

// Multiplies a row by signs s and by the Walsh-Hadamard matrix of each of its blocks (Sylvester's order), divided by
// sqrt(block):
//   out[t] = H (s in[t]), or with signs_last: out[t] = s (H in[t])
// All devices compute the same bits, in float32: sums and differences of elements 1, 2, 4, ..., block / 2 apart, then a
// multiplication by 1 / sqrt(block), rounded. out may be in. (Weights that are stored rotated: PrismML's Ternary-Bonsai-2.)
struct Rotate {
    Slot in, out;                // of the same width
    int32_t block;               // a power of two that divides the width
    WeightId signs = kNoWeight;  // F32, [1][width], each 1 or -1; none: all are 1
    bool signs_last = false;
    int32_t layer = -1;

    static constexpr bool kMixesTokens = false;
    void describe(auto &tell) const {
        tell.reads(in), tell.writes(out);
        tell.vector(signs, Use{});
    }
};

// Sums of slices, with weights of each token. The slots of `in`, one after the other, consist of n slices of `width`
// floats, those of `out` of m slices. For every j < m:
//   slice j of out[t] = scale * (sum over i < n of coefficients[t][j * n + i] * slice i of in[t])
// This mixes residual streams (AltUp: Baykal et al. 2023); with n = m = 1, it multiplies a row by a number.
struct Mix {
    static constexpr int32_t kMostSlices = 8;  // n and m are at most this
    std::vector<Slot> in, out;                 // no slot is in both
    int64_t width;                             // divides the width of every slot of in and out
    Slot coefficients = kNoSlot;               // [t][m * n]; none: all are 1
    float scale = 1;
    int32_t layer = -1;

    static constexpr bool kMixesTokens = false;
    void describe(auto &tell) const {
        for (const Slot slot : in) tell.reads(slot);
        tell.reads(coefficients);
        for (const Slot slot : out) tell.writes(slot);
    }
};

// Interpolation of rows, element by element, with one set of coefficients c per output:
//   out[i][t] = from[t] + c * (to[t] - from[t]);  a missing `from` or `to` is all zeros
// c is the sum of a row of `weight` and a slice of `coefficients`, or one of them. (RWKV's token shift, Peng et al. 2023,
// and its other interpolations.)
struct Lerp {
    static constexpr int32_t kMostOutputs = 8;
    Slot from, to;                // one of them may be kNoSlot
    std::vector<Slot> out;        // as wide as from and to; one alone may be one of them
    WeightId weight = kNoWeight;  // F32, [outputs][width]
    Slot coefficients = kNoSlot;  // [t][outputs * width]
    int32_t layer = -1;

    Slot in() const { return to != kNoSlot ? to : from; }  // as wide as the outputs

    static constexpr bool kMixesTokens = false;
    void describe(auto &tell) const {
        tell.reads(from), tell.reads(to), tell.reads(coefficients);
        for (const Slot slot : out) tell.writes(slot);
        tell.vector(weight, Use{});
    }
};

// How positions turn into rotations. Angle of pair j at position p: p * inv_freq[j]; both cos and sin are
// multiplied by `magnitude` (YaRN). The rotated dimensions of a head are [first, first + n_rot), n_rot = 2 *
// inv_freq.size(); the others pass through unchanged.
struct RopeTable {
    enum class Pairs { Adjacent, Halves };  // (2j, 2j+1) or (j, j + n_rot/2): "norm" and "neox" in llama.cpp
    Pairs pairs;
    float magnitude = 1;
    std::vector<double> inv_freq;  // radians per position, [n_rot / 2]
    int32_t first = 0;             // MLA rotates the last dimensions of a head
};

// Q, K and V of the batch's tokens -> K/V appended to the cache -> attention output.
//   q: [t][heads * head_dim_k], k: [t][kv_heads * head_dim_k], v: [t][kv_heads * head_dim_v],
//   out: [t][heads * head_dim_v].
// Per head, in this order:
//   1. RMS norm of q and k over the head, if q_norm and k_norm are given (Norm::Kind::Rms with norm_eps);
//   2. RoPE of q and k. With norm_after_rope, 2 goes before 1;
//   3. if temperature.beta is not 0: q *= 1 + temperature.beta * ln(1 + floor((p + temperature.offset) /
//      temperature.length)), where p is the position of q's token;
//   4. k and v are appended to the cache (so the cache holds k after RoPE);
//   5. scores s_i = scale * q . k_i, with a soft-cap c: s_i = c * tanh(s_i / c) (Gemma 2); with slopes:
//      s_i -= slopes[head] * (number of tokens from key i to q's) (ALiBi; Press et al. 2022). For sink cells
//      the number is counted from the position that q is rotated for;
//   6. weights p_i = exp(s_i) / (sum_j exp(s_j) + exp(sinks[head])), the last term only with sinks, over the
//      keys of the sequence that the token attends to: itself, the earlier ones of its window, and in a span
//      that is both_ways (backend.h) also the later ones;
//   7. out = sum_i p_i v_i.
// Without a slot for v, the values are the first head_dim_v dimensions of the cached keys (multi-head latent
// attention). Without a slot for k, nothing is appended: the layer reads the cells that an earlier Attention
// with the same `cache` appended for these tokens (shared K/V).
// With a slot `chosen`, a token attends only to the cells that an Indexer wrote there; window is then 0. The slot holds one
// list for all K/V heads, or one for each.
// Without slots for q and out, the step only appends k (after 1 and 2) and v: devices do nothing else for it. All
// other fields are those of a step that attends to these cells.
struct Attention {
    // Sliding: a token at p sees p_i with p - p_i < window. Chunked: p_i >= p - p % window.
    enum class Window { Sliding, Chunked };
    struct Temperature {
        float beta = 0;
        int32_t length = 1, offset = 0;
    };
    Slot q, k, v, out;
    int32_t cache;  // index into Program::cache_layers
    int32_t heads, kv_heads, head_dim_k, head_dim_v;
    float scale;
    int32_t window = 0;  // 0: all earlier keys
    // Attention sinks, for sliding windows only (Xiao et al. 2023, StreamingLLM): the first sink_cells cells (at
    // most 512) are visible to every token, as if they stood directly before the window. For them q is rotated
    // for position min(p, window + sink_cells - 1), so no distance exceeds one that occurs within the window.
    int32_t sink_cells = 0;
    int32_t rope = -1;  // index into Program::ropes; -1: positions are not encoded
    WeightId q_norm = kNoWeight, k_norm = kNoWeight;  // F32, [1][head_dim_k], shared by the heads
    float norm_eps = 0;
    bool norm_after_rope = false;
    Window window_kind = Window::Sliding;
    float softcap = 0;            // 0: none
    WeightId sinks = kNoWeight;   // F32, [1][heads]
    WeightId slopes = kNoWeight;  // F32, [1][heads]
    Temperature temperature = {};
    Slot chosen = kNoSlot;
    int32_t chosen_lists = 1;  // 1 or kv_heads
    int32_t chosen_block = 1;  // Indexer::block
    int32_t layer = -1;

    bool attends() const { return q != kNoSlot; }

    static constexpr bool kMixesTokens = true;
    void describe(auto &tell) const {
        tell.reads(q), tell.reads(k), tell.reads(v), tell.reads(chosen), tell.writes(out);
        tell.vector(q_norm, Use{}), tell.vector(k_norm, Use{}), tell.vector(sinks, Use{});
        tell.vector(slopes, Use{});
        tell.rope(rope);
        tell.cache(CacheUse{cache, k != kNoSlot, window, sink_cells});
    }
};

// Chooses the cells that a token attends to, `block` neighbors at a time: block i has the cells [i * block, (i + 1) * block)
// of the sequence.
//   q: [t][heads * head_dim], k: [t][head_dim], chosen: [t][lists() * top_k].
//   1. RoPE of q and k;
//   2. every head of q, and k, is multiplied by the Hadamard matrix of rotates_keys() (backend.h), which changes
//      no product q . k;
//   3. k is appended to the cache, in F16;
//   4. scores of the cells of the sequence up to the token's own:
//      with weights, [t][heads], one score: s_i = sum_h weights[h] * max(q_h . k_i, 0) (DeepSeek-V3.2, 2025);
//      without, a score of each head, which has a list of its own: s_i = q_h . k_i (MiniMax-M3, 2026);
//      the score of a block is the largest of its cells. NaN is below all numbers;
//   5. a list has the numbers of top_k blocks in ascending order, as floats: of the `local` newest blocks, the last of
//      which is the token's own, and of those with the largest scores among the others, the lower block among equals. A
//      token with fewer blocks chooses all; -1 follows.
// Precondition: local <= top_k, and local > 0 if block > 1.
struct Indexer {
    Slot q, k;
    Slot weights;  // or kNoSlot
    Slot chosen;
    int32_t cache;  // index into Program::cache_layers: one head of head_dim_k = head_dim, with f16_keys
    int32_t heads, head_dim, top_k;
    int32_t rope = -1;  // index into Program::ropes
    int32_t block = 1, local = 0;
    int32_t layer = -1;

    int32_t lists() const { return weights == kNoSlot ? heads : 1; }
    int32_t chosen_cells() const { return top_k * block; }  // the most that a list has

    static constexpr bool kMixesTokens = true;
    void describe(auto &tell) const {
        tell.reads(q), tell.reads(k), tell.reads(weights), tell.writes(chosen);
        tell.rope(rope);
        tell.cache(CacheUse{cache, true, 0, 0});
    }
};

// out[t] = act(gate[t]) * up[t], or act(gate[t]) without `up`. out may be gate or up.
//   Silu: x / (1 + exp(-x))
//   GeluTanh: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)));  GeluErf: x / 2 * (1 + erf(x / sqrt(2)))
//   ReluSquared: max(x, 0)^2
//   SiluClamped: with g = min(gate, 7), u = min(max(up, -7), 7): g / (1 + exp(-1.702 g)) * (u + 1); needs up
//   (gpt-oss);  Sigmoid: 1 / (1 + exp(-x));  Identity: x;  Relu: max(x, 0);  Tanh: tanh(x)
//   SiluThenLimit: min(Silu(gate), positive) * min(max(up, -positive), positive);  LimitThenSilu: the same with
//   Silu(min(gate, positive)); both need up (Step 3.5; Maple)
//   Clamp: min(max(x, negative), positive)
//   XIelu: positive * x^2 + beta * x for x > 0, else negative * (exp(min(x, eps)) - 1 - x) + beta * x
//   (Huang & Schlag 2025; Apertus)
struct Activation {
    enum class Kind {
        Silu,
        GeluTanh,
        GeluErf,
        ReluSquared,
        SiluClamped,
        Sigmoid,
        Identity,
        Relu,
        Clamp,
        XIelu,
        SiluThenLimit,
        LimitThenSilu,
        Tanh
    };
    struct Parameters {  // of Clamp, XIelu, SiluThenLimit and LimitThenSilu
        float positive = 0, negative = 0, beta = 0, eps = 0;
    };
    Slot gate, up, out;
    Kind act = Kind::Silu;
    Parameters parameters = {};
    int32_t layer = -1;

    static constexpr bool kMixesTokens = false;
    void describe(auto &tell) const { tell.reads(gate), tell.reads(up), tell.writes(out); }
};

// Whether the output is proportional to `up`.
constexpr bool is_linear_in_up(Activation::Kind kind) {
    using Kind = Activation::Kind;
    return kind != Kind::SiluClamped && kind != Kind::SiluThenLimit && kind != Kind::LimitThenSilu;
}

// Chooses the `used` experts of a token and their weights w from its router logits l:
//   1. p = softmax(l), or sigmoid(l), or l itself (SelectedSoftmax, SparseMixer);
//   2. s = p + selection_bias; without a bias and groups s = l, which has the same order;
//   3. groups > 1: the experts form that many groups of neighbors; a group's score is the sum of its
//      `group_best` largest s, and only the experts of the `groups_used` best groups remain;
//   4. the `used` experts with the largest s are chosen, the lower index among equals;
//   5. w = p of the chosen experts, without the bias; SelectedSoftmax: the softmax over the chosen logits alone;
//      SparseMixer: w = 1 / sum of exp(l_i - l) over the expert itself and each i that comes after it in the order of
//      4 and is near: l - l_i <= kNear * max(|l_i|, l);
//   6. normalize: w /= max(sum of the chosen w, 2^-14);  7. w *= scale;  8. w_e *= expert_scales[e].
// (Shazeer et al. 2017; groups and bias: DeepSeek-V3, 2024; SparseMixer, which has neither: arXiv:2409.12136.)
struct Routing {
    enum class Score { Softmax, Sigmoid, SelectedSoftmax, SparseMixer };
    static constexpr float kNear = 0.02f;  // of SparseMixer
    Score score = Score::Softmax;
    int32_t used;
    WeightId selection_bias = kNoWeight;  // F32, [1][experts]
    int32_t groups = 1, groups_used = 1, group_best = 2;
    bool normalize = false;
    float scale = 1;
    WeightId expert_scales = kNoWeight;  // F32, [1][experts]; none: ones
};

// A mixture of experts. The router is a Linear step before it; a shared expert consists of ordinary steps.
//   out[t] = add[t] + sum of w_e * (Wdown_e h_e + bdown_e)  over the chosen experts e in ascending order,
//   h_e = act(sgate_e Wgate_e x + bgate_e) * (sup_e Wup_e x + bup_e),  x = in[t].
// With weights_on_input, Wgate_e x and Wup_e x are multiplied by w_e s_e instead, and Wdown_e h_e by 1 (Llama 4).
// Biases are F32: for each expert, a matrix of one row.
//
// Devices that each have some rows of the matrices (tensor_program.h) run it as two steps, with the same logits:
//   without `down`, out[t] = h_e of the chosen experts in ascending order, [used][width]; there is no `add`;
//   without `gate` and `up`, in[t] is that, all rows of it.
// The slot of h has a multiple of kHiddenUnit floats, so that the h_e of a batch are evenly spaced.
struct Experts {
    static constexpr int64_t kHiddenUnit = 64;  // devices may pad the rows of a slot to multiples of this
    Slot in;
    Slot logits;  // [t][experts], from the router
    Slot out;
    Slot add = kNoSlot;  // may be `out`
    Routing routing;
    WeightId gate;            // count = experts; [width][cols], or [2 * width][cols]: gate, then up
    WeightId up = kNoWeight;  // [width][cols]; none: `gate` holds both, or there is no `up`
    WeightId down;            // [rows][width]
    WeightId gate_bias = kNoWeight, up_bias = kNoWeight, down_bias = kNoWeight;  // count = experts
    // F32, [1][experts]; none: ones. Without `up`, gate_scales holds the factors of all rows of `gate`.
    WeightId gate_scales = kNoWeight, up_scales = kNoWeight;
    Activation::Kind act = Activation::Kind::Silu;
    Activation::Parameters parameters = {};
    bool weights_on_input = false;
    int32_t layer = -1;

    WeightId stack() const { return down != kNoWeight ? down : gate; }  // one that is there

    static constexpr bool kMixesTokens = false;
    void describe(auto &tell) const {
        tell.reads(in), tell.reads(logits), tell.reads(add), tell.writes(out);
        const Use some{routing.used, stack()};
        tell.matrix(gate, some), tell.matrix(up, some), tell.matrix(down, some);
        tell.vector(gate_bias, some), tell.vector(up_bias, some), tell.vector(down_bias, some);
        tell.vector(gate_scales, some), tell.vector(up_scales, some);
        tell.vector(routing.selection_bias, Use{}), tell.vector(routing.expert_scales, some);
    }
};

// --- recurrent steps -------------------------------------------------------------------------------------
// These steps carry a state of fixed size from token to token; `state` is an index into Program::state_layers.
// A new sequence starts from a state of zeros. A token's arithmetic does not depend on the rest of the batch,
// so the state after a token does not depend on how the tokens were split into batches.

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

// ---------------------------------------------------------------------------------------------------------

// logits[r] = scale * (W in[row r's token] + bias), with a soft-cap c then c * tanh(that / c). Computed only
// for the tokens whose logits the batch requests.
struct Logits {
    Slot in;
    WeightId weight;            // [vocab][width]
    WeightId bias = kNoWeight;  // F32, [1][vocab]
    float scale = 1;
    float softcap = 0;  // 0: none
    int32_t layer = -1;

    static constexpr bool kMixesTokens = false;
    void describe(auto &tell) const {
        tell.reads(in);
        tell.matrix(weight, Use{.logit_rows = true}), tell.vector(bias, Use{});
    }
};

using Step = std::variant<Embed, Norm, Linear, HeadLinear, Copy, Rotate, Mix, Lerp, Attention, Indexer,
                          Activation, Experts, ShortConv, ScanGate, LinearScan, SelectiveScan, Logits>;

template <class S>
concept DescribedStep = requires(S step, const S &fixed, StepVisitor &visitor) {
    { step.layer } -> std::same_as<int32_t &>;
    typename std::bool_constant<S::kMixesTokens>;
    fixed.describe(visitor);
};
template <class>
inline constexpr bool kAllDescribed = false;
template <class... S>
inline constexpr bool kAllDescribed<std::variant<S...>> = (DescribedStep<S> && ...);
static_assert(kAllDescribed<Step>, "a step lacks `layer`, describe() or kMixesTokens");

struct SlotInfo {
    std::string name;
    int64_t width;  // floats per token
};

// What one layer caches per token.
struct CacheLayer {
    int32_t kv_heads, head_dim_k;
    int32_t head_dim_v;     // 0: values are the first dimensions of the keys
    int32_t group = 0;      // layers of one group share block tables (and a window)
    bool f16_keys = false;  // of an Indexer: keys are stored in F16, whatever the cache's type
    bool divided =
        false;  // in a rank's program: the ranks have some ranges of the cells each (tensor_program.h)
};

// What one recurrent step keeps per sequence, independent of its length.
struct StateLayer {
    int64_t floats;  // 0 in a partition that does not run the step
};

struct Program {
    std::vector<Weight> weights;
    std::vector<std::shared_ptr<const std::vector<float>>> constants;  // of weights that no file holds
    std::vector<SlotInfo> slots;
    std::vector<RopeTable> ropes;
    std::vector<CacheLayer> cache_layers;
    std::vector<StateLayer> state_layers;
    std::vector<Step> steps;
    int64_t vocab = 0;  // rows of the output matrix

    // A device's partition of a split program (split_program.h) runs in parts, with steps of other devices in
    // between: part i is steps[parts[i - 1].end .. parts[i].end). The slots `in` are copied from other
    // devices before the part runs, the slots `out` to other devices after it (Backend::exchange). Slots,
    // weights, cache layers and ropes that the partition does not use are present with size 0.
    struct Part {
        size_t end;
        std::vector<Slot> in, out;
    };
    std::vector<Part> parts;                // empty: all steps are one part
    std::vector<Part> whole_parts() const;  // never empty

    // Bytes of weights read per decoded token: all matrices once, one row of the embedding table, and only
    // the experts that are used.
    size_t weight_bytes_per_token() const;
    // Multiply and add operations of all matrices except the output matrix, per prompt token. (Attention is
    // not counted: its cost grows with the context.)
    double operations_per_token() const;
    int64_t token_ids() const;  // rows of the embedding table: the number of valid token ids
    bool gives_logits() const;  // false for a partition without the Logits step
};

}  // namespace runnel::kernels
