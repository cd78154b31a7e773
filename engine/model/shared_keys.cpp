#include "engine/model/shared_keys.h"

#include <string>

namespace runnel::model {

using namespace kernels;

std::vector<int32_t> key_owners(const Builder &b, const std::vector<bool> &full, int32_t absent) {
    const int32_t count = b.hyper().block_count;
    const char *key = "attention.shared_kv_layers";
    const auto own = count - static_cast<int32_t>(b.metadata().integer(key, 0, count - 1).value_or(absent));
    const auto is_full = [&](int32_t layer) { return full[static_cast<size_t>(layer)]; };
    std::vector<int32_t> owners;
    for (int32_t i = 0; i < count; ++i) {
        int32_t owner = i < own ? i : own - 1;
        while (owner >= 0 && is_full(owner) != is_full(i)) --owner;
        if (owner < 0)
            b.metadata().fail(key, std::to_string(count - own) + " leaves layer " + std::to_string(i) +
                                       " no layer of its kind whose keys it could read");
        owners.push_back(owner);
    }
    return owners;
}

void SharedKeyAttention::emit(int32_t layer, const AttentionKind &kind, int32_t kv_heads,
                              const SubLayer &way) {
    const HyperParameters &h = b_.hyper();
    const Size head = kind.head, width{h.embedding_length, "embedding_length"},
               all{h.head_count * head.value, kind.q_keys}, kv{kv_heads * head.value, kind.kv_keys};
    const std::string prefix = layer_prefix(layer), k_name = prefix + "attn_k", v_name = prefix + "attn_v";
    const auto part = [&](const std::string &tensor, Size rows, Size cols, Slot out) {
        return Linear::Part{b_.matrix(tensor, rows, cols), kNoWeight, out, kNoSlot};
    };
    Attention a{.q = b_.slot("q", all.value),
                .k = kNoSlot,
                .v = kNoSlot,
                .out = b_.slot("attended", all.value),
                .cache = -1,
                .heads = h.head_count,
                .kv_heads = kv_heads,
                .head_dim_k = static_cast<int32_t>(head.value),
                .head_dim_v = static_cast<int32_t>(head.value),
                .scale = 1,
                .window = kind.window,
                .rope = kind.rope,
                .q_norm = b_.vector(prefix + "attn_q_norm.weight", head),
                .norm_eps = h.norm_epsilon};
    Linear projections{way.in, {part(prefix + "attn_q.weight", all, width, a.q)}};
    const int32_t owner = owners_[static_cast<size_t>(layer)];
    if (owner == layer) {
        a.k = b_.slot("k", kv.value), a.v = b_.slot("v", kv.value);
        a.k_norm = b_.vector(k_name + "_norm.weight", head);
        projections.parts.push_back(part(k_name + ".weight", kv, width, a.k));
        const bool own_values = !kind.values_may_be_keys || b_.has(v_name + ".weight");
        if (own_values) projections.parts.push_back(part(v_name + ".weight", kv, width, a.v));
        b_.add(projections);
        b_.add(Norm{.in = own_values ? a.v : a.k,
                    .out = a.v,
                    .weight = kNoWeight,
                    .eps = h.norm_epsilon,
                    .parts = kv_heads});
        cache_layers_.push_back(b_.cache_layer({kv_heads, a.head_dim_k, a.head_dim_v}, a.window));
    } else {
        // Trained checkpoints hold these, and nothing reads them.
        for (const std::string &unused : {k_name + ".weight", v_name + ".weight", k_name + "_norm.weight"})
            b_.ignore(unused);
        b_.add(projections);
    }
    a.cache = cache_layers_[static_cast<size_t>(owner)];
    b_.add(a);
    Linear::Part output = part(prefix + "attn_output.weight", width, all, way.out);
    output.add = way.add;
    b_.add(Linear{a.out, {output}});
}

}  // namespace runnel::model
