#include "engine/model/indexer.h"

#include <cmath>

#include "engine/model/decoder.h"

namespace runnel::model {

using namespace kernels;

namespace {

// The layers with an indexer of their own.
std::vector<bool> own_indexers(const Builder &b) {
    const auto layers = static_cast<size_t>(b.hyper().block_count);
    std::vector<bool> own(layers, true);
    if (b.hyper().architecture != "glm-dsa") return own;
    const char *key = "attention.indexer.types";
    if (const auto types = b.metadata().integers(key, b.hyper().block_count, 0, 1)) {
        for (size_t i = 0; i < layers; ++i) own[i] = (*types)[i] != 0;
        if (!own[0]) b.metadata().fail(key, "the first layer has no indexer");
    } else if (b.hyper().context_length >= 1 << 20) {  // GLM-5.2: layers 0, 1, 2, 6, 10, ...
        for (size_t i = 2; i < layers; ++i) own[i] = i % 4 == 2;
    }
    return own;
}

}  // namespace

void check_indexed_context(const Builder &b) {
    constexpr int64_t kMostCells = 1 << 24;  // Indexer writes their numbers as floats
    if (b.chosen_context() > kMostCells)
        b.metadata().fail(kIndexerTopK,
                          "contexts longer than " + std::to_string(kMostCells) + " tokens are not supported");
}

IndexSizes read_index_sizes(const Builder &b) {
    const Metadata &m = b.metadata();
    const IndexSizes sizes{{m.required_integer(kIndexerHeads, 1, 65536), kIndexerHeads},
                           {m.required_integer(kIndexerKey, 1, 65536), kIndexerKey}};
    if (b.hyper().rope_dimensions > sizes.key.value)
        m.fail(kIndexerKey, "is smaller than " + b.hyper().architecture + ".rope.dimension_count");
    return sizes;
}

Indexers read_indexers(Builder &b, int32_t top_k) {
    const Metadata &m = b.metadata();
    check_indexed_context(b);
    const IndexSizes sizes = read_index_sizes(b);
    Indexers indexers{sizes.heads, sizes.key, top_k, -1, own_indexers(b)};
    if (m.integer("attention.q_lora_rank", 0, 65536).value_or(0) == 0)
        m.fail("attention.q_lora_rank", "an indexer reads latent queries, and there are none");
    // The first dimensions are rotated, in other pairs than those of attention in deepseek32.
    const bool adjacent = b.hyper().architecture == "glm-dsa";
    indexers.rope = b.rope(adjacent ? RopeTable::Pairs::Adjacent : RopeTable::Pairs::Halves);
    b.program().ropes[static_cast<size_t>(indexers.rope)].magnitude = 1;
    return indexers;
}

void ignore_indexers(Builder &b, const Indexers *indexers) {
    if (indexers == nullptr)
        for (const char *unused : {"head_count", "key_length", "types"})
            (void)b.metadata().find(std::string("attention.indexer.") + unused);
    for (int32_t i = 0; i < b.hyper().block_count; ++i)
        for (const char *name :
             {"k_norm.weight", "k_norm.bias", "proj.weight", "attn_k.weight", "attn_q_b.weight"})
            if (indexers == nullptr || !indexers->own[static_cast<size_t>(i)])
                b.ignore("blk." + std::to_string(i) + ".indexer." + name);
}

Slot chosen_cells(Builder &b, const Indexers &indexers) {
    return b.slot("chosen cells", indexers.top_k);
}

void emit_indexer(Builder &b, const Indexers &all, int32_t layer, Slot in, Slot latent_q, Size q_rank) {
    const std::string prefix = layer_prefix(layer) + "indexer.";
    const Size width{b.hyper().embedding_length, "embedding_length"};
    const int64_t heads = all.heads.value, key = all.key.value;
    const Slot q = b.slot("index queries", heads * key), k = b.slot("index key", key),
               weights = b.slot("index weights", heads);
    const Size rows{heads * key, "attention.indexer.head_count * attention.indexer.key_length"};
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(heads * key)));
    b.add(Linear{latent_q, {{b.matrix(prefix + "attn_q_b.weight", rows, q_rank), kNoWeight, q, kNoSlot}}});
    b.add(Linear{in,
                 {{b.matrix(prefix + "attn_k.weight", all.key, width), kNoWeight, k, kNoSlot},
                  {b.matrix(prefix + "proj.weight", all.heads, width), kNoWeight, weights, kNoSlot, scale}}});
    constexpr float kEpsilon = 1e-6f;  // files have no key for it
    b.add(Norm{.in = k,
               .out = k,
               .weight = b.vector(prefix + "k_norm.weight", all.key),
               .eps = kEpsilon,
               .kind = Norm::Kind::Layer,
               .bias = b.vector(prefix + "k_norm.bias", all.key)});
    b.add(Indexer{.q = q,
                  .k = k,
                  .weights = weights,
                  .chosen = chosen_cells(b, all),
                  .cache = b.cache_layer({1, static_cast<int32_t>(key), 0, 0, true}, 0),
                  .heads = static_cast<int32_t>(heads),
                  .head_dim = static_cast<int32_t>(key),
                  .top_k = all.top_k,
                  .rope = all.rope});
}

IndexRows emit_index_rows(Builder &b, const IndexSizes &sizes, int32_t layer, Slot in) {
    const std::string prefix = layer_prefix(layer) + "indexer.";
    const Size width{b.hyper().embedding_length, "embedding_length"},
        rows{sizes.heads.value * sizes.key.value,
             "attention.indexer.head_count * attention.indexer.key_length"};
    const IndexRows out{b.slot("index queries", rows.value), b.slot("index key", sizes.key.value)};
    b.add(Linear{in,
                 {{b.matrix(prefix + "q_proj.weight", rows, width), kNoWeight, out.q, kNoSlot},
                  {b.matrix(prefix + "k_proj.weight", sizes.key, width), kNoWeight, out.k, kNoSlot}}});
    b.add(Norm{.in = out.q,
               .out = out.q,
               .weight = b.vector(prefix + "q_norm.weight", sizes.key),
               .eps = b.hyper().norm_epsilon,
               .parts = static_cast<int32_t>(sizes.heads.value)});
    return out;
}

WeightId index_key_norm(Builder &b, const IndexSizes &sizes, int32_t layer) {
    return b.vector(layer_prefix(layer) + "indexer.k_norm.weight", sizes.key);
}

void ignore_index_rows(Builder &b, int32_t layer) {
    for (const char *name : {"q_proj.weight", "k_proj.weight", "q_norm.weight", "k_norm.weight"})
        b.ignore(layer_prefix(layer) + "indexer." + name);
}

}  // namespace runnel::model
