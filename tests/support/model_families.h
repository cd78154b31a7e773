// What the files of each family look like: their tensors and keys beside those that all share. Written down
// from the converters and loaders of llama.cpp and ik_llama.cpp, not from engine/model, which is tested with
// them.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace runnel::testing {

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
    // Size of what layers add to the residual stream: large where embeddings are multiplied, so that layers
    // decide the logits and not the token itself.
    float branch_gain = 1;
    std::vector<Key> keys = {};  // with values that make the feature matter in a small model
};

const std::vector<FamilyFiles> &family_files();

// Null for an unknown name.
const FamilyFiles *find_family_files(const std::string &name);

}  // namespace runnel::testing
