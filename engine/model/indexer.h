// The indexers of sparse attention (DeepSeek-V3.2, 2025): a small attention of its own scores all earlier keys of a token,
// and the layer's attention sees only the top_k best ones (kernels::Indexer).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/builder.h"

namespace runnel::model {

struct Indexers {
    Size heads, key;        // of index queries and keys
    int32_t top_k, rope;    // the number of keys that a token attends to; index into ropes
    std::vector<bool> own;  // per layer: whether it has an indexer; else it uses the last layer's choice

    bool in(int32_t layer) const { return own[static_cast<size_t>(layer)]; }
};

inline constexpr const char *kIndexerTopK = "attention.indexer.top_k",
                            *kIndexerHeads = "attention.indexer.head_count",
                            *kIndexerKey = "attention.indexer.key_length";

// Throws ModelError if the chosen context is longer than indexers support.
void check_indexed_context(const Builder &builder);
// Reads the keys of the file. Throws ModelError.
Indexers read_indexers(Builder &builder, int32_t top_k);
// Ignores the tensors and keys of indexers that the program does not have; null: it has none.
void ignore_indexers(Builder &builder, const Indexers *indexers);

// The cells that each token attends to, written by the last indexer.
kernels::Slot chosen_cells(Builder &builder, const Indexers &indexers);
// Chooses them in a layer with an indexer. `in`: the layer's input; latent_q: its latent queries, of width q_rank.
void emit_indexer(Builder &builder, const Indexers &indexers, int32_t layer, kernels::Slot in,
                  kernels::Slot latent_q, Size q_rank);

// Indexers whose queries are projections of the layer's input (MiniMax-M3, Qwen3.8).
struct IndexSizes {
    Size heads, key;  // of index queries and keys
};
// Reads the keys of the file. Throws ModelError.
IndexSizes read_index_sizes(const Builder &builder);
struct IndexRows {
    kernels::Slot q, k;
};
// The queries, with the norm of heads, and the key without its norm.
IndexRows emit_index_rows(Builder &builder, const IndexSizes &sizes, int32_t layer, kernels::Slot in);
// The weights of the key's norm.
kernels::WeightId index_key_norm(Builder &builder, const IndexSizes &sizes, int32_t layer);
// Ignores the tensors of a layer.
void ignore_index_rows(Builder &builder, int32_t layer);

}  // namespace runnel::model
