// Multi-head latent attention (DeepSeek-V2, 2024).
//
// Keys and values of all heads are linear in one latent vector c per token: k_h = [K_h c | r], v_h = V_h c,
// with a rotated part r that the heads share. Then q_h . k_h = [K_h^T q_h | q's rotated part] . [c | r] and
// the sum of values is V_h (sum of c): only [c | r] is cached, as one K/V head whose values are the first
// part of its keys. Files hold K^T and V (attn_k_b, attn_v_b), or both in one matrix (attn_kv_b: per head the
// rows of K, then those of V), which is taken apart here.
#pragma once

#include "engine/model/decoder.h"
#include "engine/model/indexer.h"

namespace runnel::model {

// The frequencies given by the file's rope.* keys, for r. Returns an index into ropes.
int32_t latent_rope(Builder &builder, kernels::RopeTable::Pairs pairs);

struct LatentOptions {
    bool head_gates =
        false;  // every head's values are multiplied by the sigmoid of a gate, one row of attn_gate
    const Indexers *indexers =
        nullptr;  // these choose the keys that a token attends to; null: it attends to all
};

// The attention half of a layer, rotated by ropes[rope] (-1: r is not rotated).
void emit_latent_attention(Builder &builder, int32_t layer, const SubLayer &sublayer, int32_t rope,
                           const LatentOptions &options = {});

}  // namespace runnel::model
