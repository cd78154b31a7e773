// minimax-m3: MiniMax M3. The norms of heads are those of each head; dense layers, then experts and a shared one, all with
// gpt-oss's clamped activation. In the layers with experts, each K/V head attends to the top_k blocks of block_size keys that
// an index query of its own scores highest, the local_blocks newest ones always among them. With at most top_k blocks that is
// all of them: without a longer context, the program has no indexer.
#include <cstdint>
#include <optional>
#include <string>

#include "engine/model/experts.h"
#include "engine/model/families.h"
#include "engine/model/indexer.h"

namespace runnel::model {

using namespace kernels;

namespace {

constexpr const char *kIndexBlock = "attention.indexer.block_size",
                     *kIndexLocal = "attention.indexer.local_blocks";

struct BlockIndexers {
    IndexSizes sizes;  // one head for each K/V head
    int32_t top_k, block, local, rope;
};

BlockIndexers read_block_indexers(Builder &b, int64_t top_k, int64_t block) {
    const Metadata &m = b.metadata();
    check_indexed_context(b);
    const IndexSizes sizes = read_index_sizes(b);
    const int64_t local = m.required_integer(kIndexLocal, 1, INT32_MAX);
    if (sizes.heads.value != b.hyper().head_count_kv) m.fail(kIndexerHeads, "is not attention.head_count_kv");
    if (local > top_k) m.fail(kIndexLocal, "is larger than attention.indexer.top_k");
    return {sizes, static_cast<int32_t>(top_k), static_cast<int32_t>(block), static_cast<int32_t>(local),
            b.rope(RopeTable::Pairs::Halves)};
}

void emit_block_indexer(Builder &b, const BlockIndexers &all, int32_t layer, Slot in, Attention &attention) {
    const auto heads = static_cast<int32_t>(all.sizes.heads.value),
               key = static_cast<int32_t>(all.sizes.key.value);
    const auto [q, k] = emit_index_rows(b, all.sizes, layer, in);
    const Slot chosen = b.slot("chosen blocks", int64_t{heads} * all.top_k);
    b.add(Norm{
        .in = k, .out = k, .weight = index_key_norm(b, all.sizes, layer), .eps = b.hyper().norm_epsilon});
    b.add(Indexer{.q = q,
                  .k = k,
                  .weights = kNoSlot,
                  .chosen = chosen,
                  .cache = b.cache_layer({1, key, 0, 0, true}, 0),
                  .heads = heads,
                  .head_dim = key,
                  .top_k = all.top_k,
                  .rope = all.rope,
                  .block = all.block,
                  .local = all.local});
    attention.chosen = chosen;
    attention.chosen_lists = heads;
    attention.chosen_block = all.block;
}

}  // namespace

void emit_minimax_m3(Builder &b) {
    const Metadata &m = b.metadata();
    const int64_t top_k = m.required_integer(kIndexerTopK, 1, 1 << 15),
                  block = m.required_integer(kIndexBlock, 1, 1 << 15),
                  dense = m.integer("leading_dense_block_count", 0, INT32_MAX).value_or(0);
    std::optional<BlockIndexers> indexers;
    if (b.chosen_context() <= top_k * block) {
        b.limit_context(top_k * block);
        for (const char *unused : {kIndexerHeads, kIndexerKey, kIndexLocal}) (void)m.find(unused);
    } else {
        indexers = read_block_indexers(b, top_k, block);
    }
    for (int32_t i = 0; i < b.hyper().block_count; ++i)
        if (!indexers || i < dense) ignore_index_rows(b, i);
    DecoderTraits traits{.pairs = RopeTable::Pairs::Halves,
                         .head_norm = DecoderTraits::HeadNorm::PerHead,
                         .act = Activation::Kind::SiluClamped};
    if (indexers)
        traits.before_attention = [&](Builder &builder, int32_t layer, Slot in, Attention &attention) {
            if (layer >= dense) emit_block_indexer(builder, *indexers, layer, in, attention);
        };
    with_experts(traits, {.score = ExpertTraits::Score::Sigmoid, .act = Activation::Kind::SiluClamped});
    emit_decoder(b, traits);
}

}  // namespace runnel::model
