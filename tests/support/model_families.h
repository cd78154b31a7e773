// What the files of each family look like: their tensors and keys beside those that all share. Written down
// from the converters and loaders of llama.cpp and ik_llama.cpp, not from engine/model, which is tested with
// them.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace runnel::testing {

// The feed-forward half of layers with experts.
struct ExpertFiles {
    enum class Shared { None, Plain, Gated };
    Shared shared = Shared::None;
    bool biases = false;          // of router and experts
    bool selection_bias = false;  // exp_probs_b
    bool width_key = true;        // expert_feed_forward_length
};

// Multi-head latent attention.
struct LatentFiles {
    bool low_rank_q = true;  // attn_q_a, attn_q_b; else attn_q
    bool joint = false;      // attn_kv_b; else attn_k_b and attn_v_b
};

struct FamilyFiles {
    enum class HeadNorm { None, PerHead, WholeRow, OwnWeights };  // [hd]; [heads * hd]; [hd, heads]
    enum class Biases { None, Qkv, All };
    using Key = std::pair<std::string, std::variant<float, uint32_t, bool, std::string>>;

    std::string name;                                            // of the variant: "command-r-plus"
    std::string arch;                                            // general.architecture: "command-r"
    std::vector<std::string> norms = {"attn_norm", "ffn_norm"};  // of every layer, [width]
    bool layer_norm = false;                                     // else RMS: decides the epsilon's key
    bool norm_bias = false;
    HeadNorm head_norm = HeadNorm::None;
    Biases biases = Biases::None;
    bool fused_qkv = false, fused_gate_up = false, gated = true;
    bool positions = false, output_bias = false, tied = false;
    int rope_divisor = 1;  // rotated dimensions: head size / this
    bool rope = true;      // has rope.* keys
    bool sinks = false;
    std::optional<ExpertFiles> experts = {};  // with ModelShape::experts.count > 0
    std::optional<LatentFiles> latent = {};
    // Size of what layers add to the residual stream: large where embeddings are multiplied, so that layers
    // decide the logits and not the token itself.
    float branch_gain = 1;
    std::vector<Key> keys = {};  // with values that make the feature matter in a small model
};

const std::vector<FamilyFiles> &family_files();

// Null for an unknown name.
const FamilyFiles *find_family_files(const std::string &name);

}  // namespace runnel::testing
