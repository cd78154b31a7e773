// What the decoder-only models of the folders have in common: hyperparameters, RoPE, and tensors by name.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/convert/config.h"
#include "engine/convert/plan.h"

namespace runnel::convert {

enum class Change : uint8_t {
    None,
    QueryHeads,  // rows of each head from halves to adjacent pairs, as the architecture "llama" rotates them
    KeyHeads,
    PlusOne,  // the norms of Gemma multiply by 1 + weight
    Squeeze,  // a convolution's middle dimension of 1 is removed
};

// A tensor of each layer: "self_attn.q_proj.weight" becomes "attn_q.weight".
struct LayerName {
    std::string_view from, to;
    Change change = Change::None;
    bool optional = false;
};

// The linear layers and norms of most families. Biases are optional.
std::vector<LayerName> plain_attention(bool pairs = false);
std::vector<LayerName> plain_feed_forward();
// `names` and the norms of query and key heads.
std::vector<LayerName> with_head_norms(std::vector<LayerName> names, Change change = Change::None);

struct RopeSettings {
    double base = 10000;
    std::string type = "default";
    Config parameters;  // of the scaling
};

class Decoder {
  public:
    // `config`: of the text model. Reads the sizes that all families have.
    Decoder(Plan &plan, const Config &config);

    const Config &config() const { return config_; }
    Plan &plan() const { return plan_; }
    int64_t layers() const { return layers_; }
    int64_t width() const { return width_; }
    int64_t heads() const { return heads_; }
    int64_t kv_heads() const { return kv_heads_; }
    int64_t head_dim() const { return head_dim_; }
    int64_t vocabulary() const {
        return vocabulary_;
    }  // rows of the token table; known after add_embeddings()

    // context_length, embedding_length, ..., attention.layer_norm_rms_epsilon from config's `epsilon`.
    void add_sizes(std::string_view epsilon = "rms_norm_eps");
    void add_key_length();
    // add_sizes(), add_key_length(), and the sizes of K/V heads and of feed-forward networks, which are the same in all
    // layers: intermediate_size may be a list of equal numbers.
    void add_dense_sizes();
    // For layers of a type, where config.json has settings per type ("full_attention").
    RopeSettings rope(std::string_view layer_type = {}, double default_base = 10000) const;
    // rope.* keys, and rope_freqs.weight for Llama 3's scaling. Throws gguf::FileError for a kind of scaling that is
    // not known. rotated: dimensions of a head.
    void add_rope(const RopeSettings &rope, int64_t rotated);

    // token_embd, output_norm and output. A matrix lm_head that equals the token table is omitted.
    void add_embeddings(Change norm = Change::None, std::string_view norm_from = "norm.weight",
                        std::string_view norm_to = "output_norm.weight");
    void add_layer(int64_t layer, std::span<const LayerName> names);
    // The name in the folder of a tensor of the decoder, and of a layer.
    std::string source_name(std::string_view suffix) const { return prefix_ + std::string(suffix); }
    std::string source_name(int64_t layer, std::string_view suffix) const;
    std::string output_name(int64_t layer, std::string_view suffix) const;

    // Throws gguf::FileError unless the activation is one of those named.
    void require_activation(std::string_view key, std::initializer_list<std::string_view> names) const;
    // "full_attention", "sliding_attention", ... of each layer. Without a list in config.json: every `period`-th has full
    // attention, the others are `other`. Throws gguf::FileError if their number is not layers().
    std::vector<std::string> layer_types(std::string_view other = {}, int64_t period = 0) const;

  private:
    void add_changed(const SourceTensor &from, const std::string &to, Change change);

    Plan &plan_;
    Config config_;
    std::string prefix_;  // of the decoder's tensors: "model."
    int64_t layers_, width_, heads_, kv_heads_, head_dim_, vocabulary_ = 0;
};

}  // namespace runnel::convert
