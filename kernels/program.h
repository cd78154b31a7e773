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
    size_t bytes() const { return gguf::row_bytes(type, cols) * static_cast<size_t>(rows); }
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

// logits[r] = W in[row r's token], only for the tokens whose logits the batch asks for.
struct Logits {
    Slot in;
    WeightId weight;  // [vocab][width]
};

using Step = std::variant<Embed, Norm, Linear, Attention, Gate, Logits>;

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

    // Bytes of weights that one decoded token reads: all matrices once, of the embedding table one row.
    size_t weight_bytes_per_token() const;
};

}  // namespace runnel::kernels
