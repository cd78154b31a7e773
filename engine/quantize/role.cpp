#include "engine/quantize/role.h"

#include <charconv>
#include <utility>

namespace runnel::quantize {

Role role_of(std::string_view name) {
    if (name == "output.weight") return Role::Output;
    if (name == "token_embd.weight" || name == "per_layer_token_embd.weight") return Role::Embedding;
    constexpr std::pair<std::string_view, Role> kParts[] = {{"attn_qkv.weight", Role::Value},
                                                            {"attn_kv_b.weight", Role::Value},
                                                            {"attn_v.weight", Role::Value},
                                                            {"attn_k.weight", Role::Key},
                                                            {"attn_q.weight", Role::Query},
                                                            {"attn_output.weight", Role::AttentionOutput},
                                                            {"ffn_up", Role::Up},
                                                            {"ffn_gate", Role::Gate},
                                                            {"ffn_down", Role::Down}};
    for (const auto &[part, role] : kParts)
        if (name.find(part) != name.npos) return role;
    return Role::Other;
}

int64_t layer_of(std::string_view name) {
    constexpr std::string_view kPrefix = "blk.";
    constexpr int64_t kMost = 1 << 20;  // a larger number comes from a damaged file and is ignored
    if (!name.starts_with(kPrefix)) return -1;
    int64_t layer = -1;
    const auto result = std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), layer);
    return result.ec == std::errc() && 0 <= layer && layer < kMost ? layer : -1;
}

}  // namespace runnel::quantize
