// The tensors and keys of each family's files, besides those that all share. Written from the
// converters and loaders of llama.cpp and ik_llama.cpp, not from engine/model, which is tested with
// them.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tests/support/model_recurrent.h"

namespace runnel::testing {

// The feed-forward half of layers with experts.
struct ExpertFiles {
    enum class Shared { None, Plain, Gated, Merged };  // Merged: gate and up in one tensor
    Shared shared = Shared::None;
    bool biases = false;          // of router and experts
    bool selection_bias = false;  // exp_probs_b
    bool bare_name = false;       // exp_probs_b without the suffix .bias
    bool width_key = true;        // expert_feed_forward_length
    bool dense_too = false;       // next to a dense network; experts have their own norm
    bool shared_count = false;    // has the key expert_shared_count
};

// Size of a key of the indexer of sparse attention.
inline constexpr int64_t kIndexerHead = 64;

// Multi-head latent attention.
struct LatentFiles {
    bool low_rank_q = true;   // attn_q_a, attn_q_b; else attn_q
    bool joint = false;       // attn_kv_b; else attn_k_b and attn_v_b
    bool indexer = false;     // of sparse attention
    bool head_gates = false;  // attn_gate, one row per head
};

// Gemma 4: the differences between layers. Heads of full layers are twice as wide as the others.
struct Gemma4Files {
    int64_t period = 3;            // the last of this many layers is full
    int64_t shared_kv = 0;         // layers at the end without keys and values
    bool wide_shared = false;      // their feed-forward network is twice as wide
    int64_t own_embedding = 0;     // width of the embedding of each layer
    bool keys_are_values = false;  // on full layers, which then have half as many key heads

    bool full(int64_t layer) const { return (layer + 1) % period == 0; }
    bool has_keys(int64_t layer, int64_t layers) const { return layer < layers - shared_kv; }
    int64_t kv_heads(int64_t layer, int64_t of_window_layers) const {
        return full(layer) && keys_are_values ? (of_window_layers + 1) / 2 : of_window_layers;
    }
    int64_t hidden(int64_t layer, int64_t layers, int64_t ff) const {
        return wide_shared && !has_keys(layer, layers) ? 2 * ff : ff;
    }
};

// Gemma 3n: which layers are full, have keys and values, and have sparse activations. llama.cpp expects these sizes, 20
// layers that read keys of their own, and tensors of keys also in the others, where nothing reads them.
struct Gemma3nFiles {
    static constexpr int64_t kStreams = 4, kRank = 64, kOwnEmbedding = 256;
    static constexpr int64_t kSharedKeys = 2;  // layers at the end

    bool full(int64_t layer) const { return layer % 2 == 1; }
    bool has_keys(int64_t layer, int64_t layers) const {
        return layer < layers - kSharedKeys || layers == 20 + kSharedKeys;
    }
    bool sparse(int64_t layer, int64_t layers) const { return layer < std::min<int64_t>(10, layers / 2); }
};

// qwen4exp: hyper-connections, embeddings of n-grams in the second layer, and sparse attention.
struct Qwen4Files {
    static constexpr int64_t kStreams = 4, kRank = 32;
    static constexpr int64_t kGramLayer = 1, kGram = 3, kHeadsPerGram = 2, kTaps = 4;
    static constexpr int64_t kRowsPerHead =
        61;  // of the table, whose rows are width / kHeads wide: llama.cpp expects it
    static constexpr int64_t kHeads = (kGram - 1) * kHeadsPerGram;
    static constexpr int64_t kBlock = 4;  // keys of an index block
};

// deepseek4: hyper-connections with Sinkhorn's mixes, keys that stand for blocks of tokens, and experts chosen by token ids in
// the first layer. llama.cpp has no other numbers of streams or ratios.
struct DeepSeek4Files {
    static constexpr int64_t kStreams = 4, kIterations = 20;
    static constexpr int64_t kGroups = 2, kRank = 48;  // of the output matrix
    static constexpr int64_t kHashLayers = 1;
    static constexpr int64_t ratio(int64_t layer) { return layer % 3 == 0 ? 0 : layer % 3 == 1 ? 4 : 128; }
};

// The sizes of one layer, for families whose layers differ.
struct LayerSizes {
    int64_t heads, kv_heads, ff;
};

struct FamilyFiles {
    // [hd]; [heads * hd]; [hd, heads]; Gain: [1, heads], for queries only
    enum class HeadNorm { None, PerHead, WholeRow, OwnWeights, Gain };
    enum class Biases { None, Qkv, All };
    using Key =
        std::pair<std::string, std::variant<float, uint32_t, bool, std::string, std::vector<int32_t>>>;

    std::string name = {};                                       // of the variant: "command-r-plus"
    std::string arch = {};                                       // general.architecture: "command-r"
    std::vector<std::string> norms = {"attn_norm", "ffn_norm"};  // of every layer, [width]
    bool layer_norm = false;  // in place of RMS norm; selects the epsilon's key
    bool norm_bias = false;
    bool bare_post_norms = false;  // norms after a half lack the suffix .weight
    HeadNorm head_norm = HeadNorm::None;
    Biases biases = Biases::None;
    bool fused_qkv = false, fused_gate_up = false, gated = true;
    bool positions = false, output_bias = false, tied = false;
    int rope_divisor = 1;  // rotated dimensions: head size / this
    bool rope = true;      // has rope.* keys
    bool sinks = false;
    bool attn_output_bias = false;  // also without the other biases
    bool norms_have_weights = true;
    bool embedding_norm = false;    // token_embd_norm
    bool inner_norms = false;       // attn_sub_norm, ffn_sub_norm
    bool image_experts = false;     // vis_*, for tokens of images
    bool narrow_values = false;     // values half as wide as keys
    bool layer_factors = false;     // layer_output_scale
    bool double_ff_key = false;     // feed_forward_length counts gate and up
    bool attention_gate = false;    // attn_gate, for every attended value
    bool head_gates = false;        // attn_gate, for every head
    bool wide_window_rope = false;  // on window layers, heads are rotated as a whole
    bool block_indexer = false;     // of block-sparse attention, in layers with experts
    // Periods of boolean arrays: the last layer of each period is full (has RoPE). 0: no array.
    int64_t window_period = 0, rope_period = 0;
    // Sizes per layer, written as arrays; a layer with heads but 0 K/V heads has attn_output only.
    std::function<LayerSizes(const LayerSizes &of_shape, int64_t layer)> layer_sizes = {};
    std::optional<ExpertFiles> experts = {};  // with ModelShape::experts.count > 0
    std::optional<LatentFiles> latent = {};
    std::optional<Gemma4Files> gemma4 = {};
    std::optional<Gemma3nFiles> gemma3n = {};
    std::optional<Qwen4Files> qwen4 = {};
    std::optional<DeepSeek4Files> deepseek4 = {};
    std::optional<RecurrentFiles> recurrent = {};
    // Size of the layers' additions to the residual stream. Large for families that multiply embeddings, so
    // that the layers determine the logits, not the token itself.
    float branch_gain = 1;
    std::vector<Key> keys = {};  // values with which the feature matters in a small model
    // Full names of keys with an array of one value, repeated for every layer.
    std::vector<std::pair<std::string, float>> keys_by_layer = {};
};

const std::vector<FamilyFiles> &family_files();

// Null for an unknown name.
const FamilyFiles *find_family_files(const std::string &name);

}  // namespace runnel::testing
