// What a model computes: a flat list of steps that every device can execute.
//
// A model family does not implement a forward pass, it emits one. A Program works on *slots*: named
// activations of shape [tokens][width] in float32, where `tokens` is the number of tokens of the batch at
// hand (any number: a prefill chunk, one token of decoding, drafts to verify). Steps read and write whole
// slots, in order. Nothing in a Program depends on the batch: positions, sequence lengths and block tables
// arrive with the Batch (backend.h), so a device may plan, fuse or capture the list once and run it for every
// batch.
//
// Shapes: a Weight is [rows][cols], row-major, one row per output element, quantised along cols.
// Conventions are ggml's: y = W x, GQA maps query head h to K/V head h / (heads / kv_heads).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "gguf/block.h"

namespace runnel::kernels {

using Slot = int32_t;  // index into Program::slots
inline constexpr Slot kNoSlot = -1;

// A matrix (or a vector: rows == 1) whose bytes live in the mapped file; see gguf/block.h for the layouts.
struct Weight {
    std::string name;  // of the tensor, for messages and profiles
    gguf::Type type;
    int64_t rows, cols;
    const std::byte *data;
    int64_t count = 1;  // matrices of this shape, one behind the other: one per expert
    size_t matrix_bytes() const { return gguf::row_bytes(type, cols) * static_cast<size_t>(rows); }
    size_t bytes() const { return matrix_bytes() * static_cast<size_t>(count); }
};
using WeightId = int32_t;  // index into Program::weights
inline constexpr WeightId kNoWeight = -1;

// --- steps -----------------------------------------------------------------------------------------------

// out[t] = scale * table[token[t]]
struct Embed {
    WeightId table;
    Slot out;
    float scale = 1;
};

// out[t] = weight * in[t] / sqrt(mean(in[t]^2) + eps)        (RMSNorm, Zhang & Sennrich 2019)
struct Norm {
    Slot in, out;     // may be the same slot
    WeightId weight;  // [1][width], F32
    float eps;
};

// For every part: out[t] = W in[t] (+ bias) (+ add[t]). Parts share their input, which a device may quantise
// once; `add` may be the same slot as `out` (a residual stream updated in place).
struct Linear {
    struct Part {
        WeightId weight;
        WeightId bias;  // [1][rows], F32, or kNoWeight
        Slot out;
        Slot add;  // or kNoSlot
    };
    Slot in;
    std::vector<Part> parts;
};

// How positions turn into rotations. Angle of pair j at position p: p * inv_freq[j]; both cos and sin are
// multiplied by `magnitude` (YaRN). Dimensions from 2 * inv_freq.size() on pass through unchanged.
struct RopeTable {
    enum class Pairs { Adjacent, Halves };  // (2j, 2j+1) or (j, j + n_rot/2): "norm" and "neox" in llama.cpp
    Pairs pairs;
    float magnitude = 1;
    std::vector<double> inv_freq;  // radians per position, [n_rot / 2]
};

// Q, K and V of the batch's tokens -> K/V appended to the cache -> attention output.
//   q: [t][heads * head_dim_k], k: [t][kv_heads * head_dim_k], v: [t][kv_heads * head_dim_v],
//   out: [t][heads * head_dim_v].
// Per head, in this order: optional RMS norm of q and k over the head (weight [1][head_dim_k], shared by the
// heads), RoPE of q and k, append k and v to the cache, then
//   out = sum_i softmax_i(scale * q . k_i) v_i   over the keys i of the sequence with 0 <= p - p_i < window.
// The cache keeps k after RoPE.
struct Attention {
    Slot q, k, v, out;
    int32_t layer;  // index into CacheLayout::layers
    int32_t heads, kv_heads, head_dim_k, head_dim_v;
    float scale;
    int32_t window = 0;  // 0: all earlier keys
    int32_t rope = -1;   // index into Program::ropes; -1: positions are not encoded
    WeightId q_norm = kNoWeight, k_norm = kNoWeight;
    float norm_eps = 0;
};

// out[t] = act(gate[t]) * up[t]
struct Gate {
    enum class Act { Silu };
    Slot gate, up, out;
    Act act = Act::Silu;
};

// Which `used` of the experts a token goes to, and with which weights w, from its router logits l:
//   1. p = softmax(l), or sigmoid(l), or l itself (SelectedSoftmax);
//   2. s = p + selection_bias; without a bias and groups s = l, which has the same order;
//   3. groups > 1: the experts form that many groups of neighbours, a group counts as the sum of its
//      `group_best` largest s, and only the experts of the `groups_used` best groups stay;
//   4. the `used` experts with the largest s are chosen, of equals the first;
//   5. w = p of the chosen, without the bias; SelectedSoftmax: the softmax over the chosen logits alone;
//   6. normalize: w /= max(sum of the chosen w, 2^-14);  7. w *= scale.
// (Shazeer et al. 2017; groups and bias: DeepSeek-V3, 2024.)
struct Routing {
    enum class Score { Softmax, Sigmoid, SelectedSoftmax };
    Score score = Score::Softmax;
    int32_t used;
    WeightId selection_bias = kNoWeight;  // F32, [1][experts]
    int32_t groups = 1, groups_used = 1, group_best = 2;
    bool normalize = false;
    float scale = 1;
};

// A mixture of experts. The router is an ordinary Linear before it, a shared expert ordinary steps beside it.
//   out[t] = add[t] + sum of w_e * (Wdown_e h_e + bdown_e)  over the chosen experts e in ascending order,
//   h_e = act(Wgate_e x + bgate_e) * (Wup_e x + bup_e),  x = in[t].
// With weights_on_input, w_e multiplies Wgate_e x and Wup_e x instead (Llama 4 scales what goes in).
// Biases are F32: one row per expert.
struct Experts {
    Slot in;
    Slot logits;  // [t][experts], from the router
    Slot out;
    Slot add = kNoSlot;  // may be `out`
    Routing routing;
    WeightId gate;  // count = experts; [width][cols]; [2 * width][cols] if it holds both, gate first
    WeightId up = kNoWeight;  // [width][cols]; none: `gate` holds it as well
    WeightId down;            // [rows][width]
    WeightId gate_bias = kNoWeight, up_bias = kNoWeight, down_bias = kNoWeight;  // [experts][rows of each]
    Gate::Act act = Gate::Act::Silu;
    bool weights_on_input = false;
};

// logits[r] = W in[row r's token], only for the tokens whose logits the batch asks for.
struct Logits {
    Slot in;
    WeightId weight;  // [vocab][width]
};

using Step = std::variant<Embed, Norm, Linear, Attention, Gate, Experts, Logits>;

struct SlotInfo {
    std::string name;
    int64_t width;  // floats per token
};

// One K/V pair of a layer, in the cache's shape.
struct CacheLayer {
    int32_t kv_heads, head_dim_k, head_dim_v;
    int32_t group = 0;  // layers of one group share block tables (and a window)
};

struct Program {
    std::vector<Weight> weights;
    std::vector<SlotInfo> slots;
    std::vector<RopeTable> ropes;
    std::vector<CacheLayer> cache_layers;
    std::vector<Step> steps;
    int64_t vocab = 0;  // rows of the output matrix

    // Bytes of weights that one decoded token reads: all matrices once, of the embedding table one row, of
    // the experts those that are used.
    size_t weight_bytes_per_token() const;
};

}  // namespace runnel::kernels
