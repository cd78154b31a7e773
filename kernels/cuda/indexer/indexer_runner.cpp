#include "kernels/cuda/indexer/indexer_runner.h"

#include <algorithm>

#include "kernels/cuda/indexer/indexer.h"
#include "kernels/cuda/runtime/memory_need.h"
#include "kernels/steps.h"

namespace runnel::kernels::cuda {
namespace {

// The most cells of a sequence, in whole blocks; 0 if the program has no indexers.
int64_t most_cells(const Program &program, const CacheConfig &cache) {
    int64_t cells = 0;
    for_each_step<Indexer>(program, [&](const Indexer &step) {
        const auto group = static_cast<size_t>(program.cache_layers[static_cast<size_t>(step.cache)].group);
        cells = std::max(cells, int64_t{cache.blocks[group]} * kBlockTokens);
    });
    const int64_t context = (int64_t{cache.context} + kBlockTokens - 1) / kBlockTokens * kBlockTokens;
    return context > 0 ? std::min(cells, context) : cells;
}

// The attention that appends an indexer's keys.
Attention keys_of(const Indexer &step) {
    Attention keys{};
    keys.q = keys.v = keys.out = kNoSlot, keys.k = step.k;
    keys.cache = step.cache;
    keys.heads = keys.kv_heads = 1;
    keys.head_dim_k = step.head_dim;
    keys.rope = step.rope;
    keys.layer = step.layer;
    return keys;
}

}  // namespace

size_t IndexerRunner::bytes(const Program &program, const CacheConfig &cache) {
    return static_cast<size_t>(most_cells(program, cache) * kIndexTurn) * sizeof(float);
}

IndexerRunner::IndexerRunner(const Program &program, const CacheConfig &cache)
    : program_(&program), cells_(most_cells(program, cache)) {
    if (cells_ == 0) return;
    scores_ = DeviceMemory(bytes(program, cache), "the indexer");
}

void IndexerRunner::prepare() {
    cuda::prepare(attention_append_kernel().handle, kAppendShared);
    cuda::prepare(index_queries_kernel().handle, index_queries_shared());
    cuda::prepare(index_scores_kernel().handle, index_scores_shared());
    cuda::prepare(index_choice_kernel().handle, index_choice_shared());
}

void IndexerRunner::enqueue(Launcher &launcher, const Indexer &step, const AttentionRunner &attention,
                            const AttentionRunner::Operands &operands) const {
    attention.enqueue(launcher, keys_of(step), nullptr, operands);
    const auto slot = [&](Slot id) { return operands.slots[static_cast<size_t>(id)]; };
    const auto stride = [&](Slot id) { return stride_of(program_->slots[static_cast<size_t>(id)].width); };
    const BatchInput &input = operands.input;
    const int32_t group = program_->cache_layers[static_cast<size_t>(step.cache)].group;
    launcher.run(index_queries_kernel(), (int64_t{operands.tokens} * step.heads + 3) / 4,
                 index_queries_shared(),
                 {slot(step.q), input.positions(), stride(step.q), attention.rope_params(step.rope),
                  operands.tokens, step.heads, step.head_dim});
    IndexParams p{};
    p.q = slot(step.q), p.q_stride = stride(step.q);
    if (step.weights != kNoSlot) p.weights = slot(step.weights), p.weights_stride = stride(step.weights);
    p.keys = cache_pages(operands.cache.k(step.cache), CacheType::F16, step.head_dim, true);
    p.sequences = input.sequences(), p.sequence_count = input.sequence_count();
    p.tables = input.tables(group), p.table_stride = input.table_stride(group);
    p.scores = scores_.as<float>(), p.scores_stride = cells_;
    p.chosen = slot(step.chosen), p.chosen_stride = stride(step.chosen);
    p.heads = step.heads, p.top_k = step.top_k, p.lists = step.lists();
    p.block = step.block, p.local = step.local;
    p.pooled = step.pooled, p.all_cells = step.all_cells();
    for (p.first = 0; p.first < operands.tokens; p.first = p.end) {
        p.end = std::min(operands.tokens, p.first + kIndexTurn / p.lists);
        launcher.run(index_scores_kernel(), INT32_MAX, index_scores_shared(), p);
        launcher.run(index_choice_kernel(), int64_t{p.end - p.first} * p.lists, index_choice_shared(), p);
    }
}

}  // namespace runnel::kernels::cuda
