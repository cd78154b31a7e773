// The steps of a Program (program.h) that look at earlier tokens through the cache: attention, and the choice of what it sees.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/step.h"

namespace runnel::kernels {

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

// Rotates every head of a row, in place, as an Attention with this table does. With `back`, by the negative angles.
// With block > 1, only rows of tokens at positions p = block - 1, 2 * block - 1, ... are rotated, for the position
// p - block + 1: such a row stands for the block of tokens that ends with it (SoftPool).
struct Rope {
    Slot slot;
    int32_t head_dim;  // divides the width of the slot
    int32_t rope;      // index into Program::ropes
    bool back = false;
    int32_t block = 1;
    int32_t layer = -1;

    static constexpr bool kMixesTokens = false;
    void describe(auto &tell) const { tell.reads(slot), tell.writes(slot), tell.rope(rope); }
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
// With stride > 1, a token sees only the cells stride - 1, 2 * stride - 1, ..., each of which stands for `stride` cells
// (SoftPool); window is then 0. A token that sees none of them gets zeros.
// With a slot `sums`, the step also writes for every head of q the largest s_i (or the sink, if that is larger), m, and the
// divisor of 6 with exp(s_i - m) in place of exp(s_i), 0 if there is no key: so that JoinAttention can go on from there.
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
    int32_t chosen_lists = 1;    // 1 or kv_heads
    int32_t chosen_block = 1;    // Indexer::block
    bool chosen_pooled = false;  // Indexer::pooled
    int32_t stride = 1;
    Slot sums = kNoSlot;  // [t][heads][2]: m, and the sum
    int32_t layer = -1;

    bool attends() const { return q != kNoSlot; }

    static constexpr bool kMixesTokens = true;
    void describe(auto &tell) const {
        tell.reads(q), tell.reads(k), tell.reads(v), tell.reads(chosen), tell.writes(out), tell.writes(sums);
        tell.vector(q_norm, Use{}), tell.vector(k_norm, Use{}), tell.vector(sinks, Use{});
        tell.vector(slopes, Use{});
        tell.rope(rope);
        tell.cache(CacheUse{cache, k != kNoSlot, window, sink_cells});
    }
};

// What one attention to the keys of several Attention steps gives, from the outputs of each: with their maxima m_i and sums
// l_i of a head and a token, M = max m_i,
//   w_i = l_i exp(m_i - M) / sum_j (l_j exp(m_j - M)),  out = sum_i w_i in_i
// At least one of the steps sees a key or has sinks.
struct JoinAttention {
    static constexpr int32_t kMost = 4;  // steps
    struct Part {
        Slot in, sums;  // Attention::out and Attention::sums
    };
    std::vector<Part> parts;
    Slot out;  // may be parts[0].in
    int32_t heads;
    int32_t layer = -1;

    static constexpr bool kMixesTokens = false;
    void describe(auto &tell) const {
        for (const Part &part : parts) tell.reads(part.in), tell.reads(part.sums);
        tell.writes(out);
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
//      the score of a block is the largest of its cells, or with `pooled` that of its last cell, whose key stands for all of
//      them (Qwen3.8, 2026). NaN is below all numbers;
//   5. a list has the numbers of top_k blocks in ascending order, as floats: of the `local` newest blocks, the last of
//      which is the token's own, and of those with the largest scores among the others, the lower block among equals. With
//      `pooled`, only whole blocks are compared: top_k - 1 of them are chosen, and besides them the block that the token's
//      own cell leaves unfinished, if it does. A token with fewer blocks chooses all; -1 follows.
// Precondition: local <= top_k, and local > 0 if block > 1; with pooled, local = 0 and block > 1.
struct Indexer {
    Slot q, k;
    Slot weights;  // or kNoSlot
    Slot chosen;
    int32_t cache;  // index into Program::cache_layers: one head of head_dim_k = head_dim, with f16_keys
    int32_t heads, head_dim, top_k;
    int32_t rope = -1;  // index into Program::ropes
    int32_t block = 1, local = 0;
    bool pooled = false;
    int32_t layer = -1;

    int32_t lists() const { return weights == kNoSlot ? heads : 1; }
    int32_t chosen_cells() const { return top_k * block; }  // the most that a list has
    // A token that sees at most so many cells chooses all of them.
    int32_t all_cells() const { return chosen_cells() - pooled; }

    static constexpr bool kMixesTokens = true;
    void describe(auto &tell) const {
        tell.reads(q), tell.reads(k), tell.reads(weights), tell.writes(chosen);
        tell.rope(rope);
        tell.cache(CacheUse{cache, true, 0, 0});
    }
};

}  // namespace runnel::kernels
