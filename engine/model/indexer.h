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

inline constexpr const char *kIndexerTopK = "attention.indexer.top_k";

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

}  // namespace runnel::model
