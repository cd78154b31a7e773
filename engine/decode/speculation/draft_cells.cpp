#include "engine/decode/speculation/draft_cells.h"

#include <algorithm>
#include <utility>

#include "engine/decode/scheduled_sequence.h"

namespace runnel::decode {
namespace {

using kernels::BlockId, kernels::kBlockTokens;

// Blocks of a draft: for the cells of the block that it begins in, and for its tokens.
constexpr int32_t kOwn = 2;
static_assert(kBlockTokens - 1 + kMostDrafts <= kOwn * kBlockTokens);

}  // namespace

DraftCells::DraftCells(std::shared_ptr<HiddenStates> states, int32_t batch, int32_t sequences)
    : states_(std::move(states)),
      ahead_(states_->pairs() == HiddenStates::Pairs::WithNext ? 1 : 0),
      behind_(states_->pairs() == HiddenStates::Pairs::WithBefore ? 1 : 0),
      batch_(batch),
      sequences_(sequences),
      own_(static_cast<BlockId>(states_->blocks())) {}

kernels::CacheConfig DraftCells::cache(const Executor &target) const {
    return {.blocks = {own_ + kOwn * sequences_},
            .k = target.types().k,
            .v = target.types().v,
            .context = target.context() + kOwn * kBlockTokens};
}

DraftCells::Place DraftCells::place(const cache::SequenceCache &cache, size_t sequence) const {
    const std::span<const BlockId> all = table(cache);
    Place place{.cache = &cache, .table = {all.begin(), all.begin() + length(cache) / kBlockTokens}};
    for (int32_t i = 0; i < kOwn; ++i)
        place.table.push_back(own_ + kOwn * static_cast<BlockId>(sequence) + i);
    return place;
}

// Computes missing cells in one pass; `found`: there were some.
bool DraftCells::compute_missing(kernels::Backend &backend, kernels::Slot state, size_t block,
                                 std::span<const Place *const> sequences, const std::atomic<bool> *cancel,
                                 bool &found) {
    std::vector<TokenId> batch;
    std::vector<int32_t> positions;
    std::vector<kernels::SequenceSpan> spans;
    std::vector<std::span<const TokenId>> texts;           // of the spans
    std::vector<bool> written(static_cast<size_t>(own_));  // cache blocks, in this pass
    const kernels::SlotRows rows = backend.exchange(state);
    const auto width = static_cast<size_t>(states_->width());
    for (const Place *sequence : sequences) {
        const cache::SequenceCache &cache = *sequence->cache;
        const int32_t end_of_text = length(cache), room = batch_ - static_cast<int32_t>(batch.size());
        const std::span<const BlockId> blocks = table(cache);
        const auto used = blocks.first(static_cast<size_t>((end_of_text + kBlockTokens - 1) / kBlockTokens));
        // A sequence that shares a cache block with an earlier one finds its cells in the next pass.
        if (room == 0 ||
            std::ranges::any_of(used, [&](BlockId id) { return written[static_cast<size_t>(id)]; }))
            continue;
        const std::span<const TokenId> tokens = cache.tokens();
        const int32_t from = states_->next_unmarked(blocks, 0, end_of_text, block, tokens);
        int32_t end = from;
        while (end < std::min(end_of_text, from + room) && !states_->is_marked(blocks, end, block, tokens))
            ++end;
        if (end == from) continue;
        spans.push_back({static_cast<int32_t>(batch.size()), end - from, from, {blocks}});
        texts.push_back(tokens);
        for (int32_t cell = from; cell < end; ++cell) {
            states_->get(blocks, cell - behind_,
                         {rows.data + static_cast<int64_t>(batch.size()) * rows.stride, width});
            batch.push_back(tokens[static_cast<size_t>(cell + ahead_)]);
            positions.push_back(cell);
            written[static_cast<size_t>(blocks[static_cast<size_t>(cell / kBlockTokens)])] = true;
        }
    }
    found = !spans.empty();
    if (!found) return true;
    if (!backend.execute({batch, positions, spans, {}, cancel}, {})) return false;
    for (size_t i = 0; i < texts.size(); ++i)
        for (int32_t cell = spans[i].past; cell < spans[i].past + spans[i].count; ++cell)
            states_->mark(spans[i].tables[0], cell, block, texts[i]);
    return true;
}

bool DraftCells::fill(kernels::Backend &backend, kernels::Slot state, size_t block,
                      std::span<const Place *const> sequences, const std::atomic<bool> *cancel) {
    for (bool found = true; found;)
        if (!compute_missing(backend, state, block, sequences, cancel, found)) return false;
    return true;
}

void DraftCells::copy_ends(kernels::Backend &backend, std::span<const Place *const> sequences) const {
    for (const Place *sequence : sequences) {
        const int32_t end = length(*sequence->cache);
        if (end % kBlockTokens == 0) continue;
        const auto last = static_cast<size_t>(end / kBlockTokens);
        const kernels::BlockCopy copy{table(*sequence->cache)[last], sequence->table[last]};
        backend.copy_blocks(0, {&copy, 1});
    }
}

}  // namespace runnel::decode
