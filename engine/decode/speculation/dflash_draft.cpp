#include "engine/decode/speculation/dflash_draft.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace runnel::decode {

DFlashDraft::DFlashDraft(const MakeBackend &make_backend, const model::DraftHead &head,
                         const Executor &target, std::shared_ptr<HiddenStates> states, int32_t sequences)
    : text_(make_backend()),
      block_(make_backend()),
      state_(head.program.parts.front().in.front()),
      by_token_(head.tokens, target.vocab()),
      block_tokens_(std::min(head.block_tokens, kMostDrafts + 1)),
      mask_(head.mask),
      both_ways_(head.both_ways),
      context_(target.context()),
      sequences_(std::clamp(sequences, 1, kMostDraftedTogether)),
      vocab_(target.vocab()),
      rows_of_output_(static_cast<int32_t>(head.block.vocab)),
      cells_(std::move(states), target.batch_size(), sequences_) {
    kernels::CacheConfig cache = cells_.cache(target);
    text_->load(head.program, cache, target.batch_size());
    cache.pools = text_->cache_pools();
    assert(cache.pools);
    block_->load(head.block, cache, sequences_ * block_tokens_);
}

bool DFlashDraft::begin(std::span<const cache::SequenceCache *const> caches, int32_t most,
                        const std::atomic<bool> *cancel) {
    assert(caches.size() <= static_cast<size_t>(sequences_));
    cancel_ = cancel;
    done_ = 0, most_ = most;
    assert(most <= most_steps());
    places_.clear();
    for (const cache::SequenceCache *cache : caches) places_.push_back(cells_.place(*cache, places_.size()));
    std::vector<const DraftCells::Place *> all;
    for (const DraftCells::Place &place : places_) all.push_back(&place);
    if (!cells_.fill(*text_, state_, 0, all, cancel)) return false;
    cells_.copy_ends(*block_, all);
    return true;
}

// Computes the blocks of all sequences.
bool DFlashDraft::guess(std::span<const Next> next) {
    std::vector<TokenId> tokens;
    std::vector<int32_t> positions, rows;
    std::vector<kernels::SequenceSpan> spans;
    for (const auto &[sequence, token] : next) {
        const DraftCells::Place &place = places_[sequence];
        const int32_t length = cells_.length(*place.cache);
        spans.push_back({.first = static_cast<int32_t>(tokens.size()),
                         .count = block_tokens_,
                         .past = length,
                         .tables = {place.table},
                         .both_ways = both_ways_});
        for (int32_t i = 0; i < block_tokens_; ++i) {
            if (i > 0 && i <= most_) rows.push_back(static_cast<int32_t>(tokens.size()));
            tokens.push_back(i == 0 ? token : mask_);
            positions.push_back(length + i);
        }
    }
    guesses_.resize(rows.size() * static_cast<size_t>(rows_of_output_));
    return block_->execute({tokens, positions, spans, rows, cancel_}, guesses_);
}

std::span<const float> DFlashDraft::step(std::span<const Next> next) {
    assert(done_ < static_cast<size_t>(most_));
    if (done_ == 0) {
        assert(next.size() == places_.size());
        if (!guess(next)) return {};
    }
    const auto rows = static_cast<size_t>(rows_of_output_), steps = static_cast<size_t>(most_);
    logits_.resize(next.size() * rows);
    for (size_t i = 0; i < next.size(); ++i)
        std::ranges::copy(std::span(guesses_).subspan((next[i].sequence * steps + done_) * rows, rows),
                          logits_.begin() + static_cast<std::ptrdiff_t>(i * rows));
    ++done_;
    return by_token_.of(logits_);
}

}  // namespace runnel::decode
