// Attention in which the last layers have no keys and values and read those of an earlier layer (Gemma 3n, Gemma 4).
// Query and key heads are normed, value heads are normed without weights, and scores are not scaled.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/model/decoder.h"

namespace runnel::model {

// For every layer the one whose keys and values it reads: itself, or, in the last `attention.shared_kv_layers` layers
// (without the key: `absent`), the last layer of its kind (full or not) before them. Throws ModelError if there is none.
std::vector<int32_t> key_owners(const Builder &builder, const std::vector<bool> &full, int32_t absent);

// The attention layers of one kind.
struct AttentionKind {
    Size head;                         // of a key, and of a value
    std::string_view q_keys, kv_keys;  // where the widths of all heads come from (Size::keys)
    int32_t window, rope;              // window: 0 for none
    bool values_may_be_keys = false;   // without attn_v, values are the keys before norm and RoPE
};

class SharedKeyAttention {
  public:
    // owners: as key_owners() gives; none if all layers are emit_reader()s.
    explicit SharedKeyAttention(Builder &builder, std::vector<int32_t> owners = {})
        : b_(builder), owners_(std::move(owners)) {}

    // Writes way.out = W attended + way.add. Layers in ascending order.
    void emit(int32_t layer, const AttentionKind &kind, int32_t kv_heads, const SubLayer &way);
    // The same for a layer without keys and values: it reads those of cache layer `cache`.
    void emit_reader(int32_t layer, const AttentionKind &kind, int32_t kv_heads, const SubLayer &way,
                     int32_t cache);

  private:
    Size width() const { return {b_.hyper().embedding_length, "embedding_length"}; }
    Size heads(const AttentionKind &kind) const;  // the queries of all heads
    kernels::Linear::Part part(int32_t layer, const char *tensor, Size rows, Size cols, kernels::Slot out,
                               kernels::Slot add = kernels::kNoSlot);
    // The step without keys, values and cache.
    kernels::Attention queries(int32_t layer, const AttentionKind &kind, int32_t kv_heads);
    void attend(int32_t layer, const AttentionKind &kind, const kernels::Attention &step,
                const SubLayer &way);

    Builder &b_;
    std::vector<int32_t> owners_;
    std::vector<int32_t> cache_layers_;  // by layer that has keys and values
};

}  // namespace runnel::model
