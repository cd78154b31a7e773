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

Size SharedKeyAttention::heads(const AttentionKind &kind) const {
    return {b_.hyper().head_count * kind.head.value, kind.q_keys};
}

Linear::Part SharedKeyAttention::part(int32_t layer, const char *tensor, Size rows, Size cols, Slot out,
                                      Slot add) {
    return {b_.matrix(layer_prefix(layer) + tensor + ".weight", rows, cols), kNoWeight, out, add};
}

Attention SharedKeyAttention::queries(int32_t layer, const AttentionKind &kind, int32_t kv_heads) {
    const int64_t all = heads(kind).value;
    return {.q = b_.slot("q", all),
            .k = kNoSlot,
            .v = kNoSlot,
            .out = b_.slot("attended", all),
            .cache = -1,
            .heads = b_.hyper().head_count,
            .kv_heads = kv_heads,
            .head_dim_k = static_cast<int32_t>(kind.head.value),
            .head_dim_v = static_cast<int32_t>(kind.head.value),
            .scale = 1,
            .window = kind.window,
            .rope = kind.rope,
            .q_norm = b_.vector(layer_prefix(layer) + "attn_q_norm.weight", kind.head),
            .norm_eps = b_.hyper().norm_epsilon};
}

void SharedKeyAttention::attend(int32_t layer, const AttentionKind &kind, const Attention &step,
                                const SubLayer &way) {
    b_.add(step);
    b_.add(Linear{step.out, {part(layer, "attn_output", width(), heads(kind), way.out, way.add)}});
}

void SharedKeyAttention::emit(int32_t layer, const AttentionKind &kind, int32_t kv_heads,
                              const SubLayer &way) {
    const int32_t owner = owners_[static_cast<size_t>(layer)];
    const std::string prefix = layer_prefix(layer);
    if (owner != layer) {
        // Trained checkpoints hold these, and nothing reads them.
        for (const char *unused : {"attn_k.weight", "attn_v.weight", "attn_k_norm.weight"})
            b_.ignore(prefix + unused);
        return emit_reader(layer, kind, kv_heads, way, cache_layers_[static_cast<size_t>(owner)]);
    }
    const Size kv{kv_heads * kind.head.value, kind.kv_keys};
    Attention a = queries(layer, kind, kv_heads);
    a.k = b_.slot("k", kv.value), a.v = b_.slot("v", kv.value);
    a.k_norm = b_.vector(prefix + "attn_k_norm.weight", kind.head);
    Linear projections{
        way.in, {part(layer, "attn_q", heads(kind), width(), a.q), part(layer, "attn_k", kv, width(), a.k)}};
    const bool own_values = !kind.values_may_be_keys || b_.has(prefix + "attn_v.weight");
    if (own_values) projections.parts.push_back(part(layer, "attn_v", kv, width(), a.v));
    b_.add(projections);
    b_.add(Norm{.in = own_values ? a.v : a.k,
                .out = a.v,
                .weight = kNoWeight,
                .eps = b_.hyper().norm_epsilon,
                .parts = kv_heads});
    cache_layers_.push_back(b_.cache_layer({kv_heads, a.head_dim_k, a.head_dim_v}, a.window));
    a.cache = cache_layers_.back();
    attend(layer, kind, a, way);
}

void SharedKeyAttention::emit_reader(int32_t layer, const AttentionKind &kind, int32_t kv_heads,
                                     const SubLayer &way, int32_t cache) {
    Attention a = queries(layer, kind, kv_heads);
    b_.add(Linear{way.in, {part(layer, "attn_q", heads(kind), width(), a.q)}});
    a.cache = cache;
    attend(layer, kind, a, way);
}

}  // namespace runnel::model
