#include "engine/decode/speculation/block_draft.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "engine/decode/scheduled_sequence.h"
#include "engine/decode/stop_request.h"

namespace runnel::decode {
namespace {

using kernels::BlockId, kernels::kBlockTokens;

// For the cached cells of the block that drafts begin in, and for drafts.
constexpr int32_t kScratch = 2;
static_assert(kBlockTokens - 1 + kMostDrafts <= kScratch * kBlockTokens);

}  // namespace

DraftBlock::DraftBlock(std::unique_ptr<kernels::Backend> backend, const kernels::Program &program,
                       const Executor &target, std::shared_ptr<HiddenStates> states)
    : backend_(std::move(backend)),
      states_(std::move(states)),
      before_(program.parts.front().in.front()),
      hidden_(program.parts.front().out.front()),
      context_(target.context()),
      batch_(target.batch_size()),
      scratch_(static_cast<BlockId>(states_->blocks())),
      state_(static_cast<size_t>(states_->width())),
      logits_(static_cast<size_t>(program.vocab)) {
    const CacheTypes types = target.types();
    backend_->load(program,
                   {.blocks = {scratch_ + kScratch},
                    .k = types.k,
                    .v = types.v,
                    .context = context_ + kScratch * kBlockTokens},
                   batch_);
}

bool DraftBlock::compute(const cache::SequenceCache &cache, int32_t first, int32_t count) {
    const std::span<const BlockId> table = cache.table(0);
    const auto tokens =
        std::span(cache.tokens()).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
    const kernels::SlotRows rows = backend_->exchange(before_);
    positions_.clear();
    for (int32_t i = 0; i < count; ++i) {
        positions_.push_back(first + i);
        states_->get(table, first + i - 1, {rows.data + i * rows.stride, state_.size()});
    }
    const kernels::SequenceSpan span{0, count, first, {table}};
    if (!backend_->execute({tokens, positions_, {&span, 1}, {}, cancel_}, {})) return false;
    for (int32_t i = 0; i < count; ++i) states_->mark(table, first + i);
    return true;
}

bool DraftBlock::begin(const cache::SequenceCache &cache, const std::atomic<bool> *cancel) {
    cancel_ = cancel;
    length_ = cache.length();
    const std::span<const BlockId> table = cache.table(0);
    for (int32_t cell = 0; (cell = states_->next_unmarked(table, cell, length_)) < length_;) {
        int32_t end = cell + 1;
        while (end < std::min(length_, cell + batch_) && !states_->is_marked(table, end)) ++end;
        if (!compute(cache, cell, end - cell)) return false;
        cell = end;
    }
    // The last block may be shared with other sequences, which have other tokens after these.
    const int32_t whole = length_ / kBlockTokens;
    table_.assign(table.begin(), table.begin() + whole);
    for (int32_t i = 0; i < kScratch; ++i) table_.push_back(scratch_ + i);
    if (length_ % kBlockTokens > 0) {
        const kernels::BlockCopy copy{table[static_cast<size_t>(whole)], scratch_};
        backend_->copy_blocks(0, {&copy, 1});
    }
    states_->get(table, length_ - 1, state_);
    return true;
}

std::span<const float> DraftBlock::step(TokenId token) {
    assert(length_ < static_cast<int32_t>(table_.size()) * kBlockTokens);
    std::ranges::copy(state_, backend_->exchange(before_).data);
    const kernels::SequenceSpan span{0, 1, length_, {table_}};
    const int32_t row = 0;
    if (!backend_->execute({{&token, 1}, {&length_, 1}, {&span, 1}, {&row, 1}, cancel_}, logits_)) return {};
    std::copy_n(backend_->exchange(hidden_).data, state_.size(), state_.begin());
    ++length_;
    return logits_;
}

void BlockDraft::follow(const cache::SequenceCache *cache, const StopRequest *stop) {
    cache_ = cache;
    cancel_ = stop ? stop->flag() : nullptr;
}

Draft BlockDraft::draft(std::span<const TokenId> text, int32_t most, float least_probability,
                        Sampler &sampler) {
    const auto known = [&](TokenId id) { return id >= 0 && id < block_->vocab(); };
    const auto length = static_cast<int64_t>(text.size());
    most = static_cast<int32_t>(std::min<int64_t>({most, block_->context() - length, kMostDrafts}));
    writer_.begin(text, most, least_probability, sampler);
    // (An evicted sequence has no cells.)
    if (!cache_ || cache_->length() + 1 != length || most <= 0 || !known(text.back())) return {};
    if (!block_->begin(*cache_, cancel_)) return {};
    for (TokenId last = text.back(); known(last); last = writer_.last()) {
        const std::span<const float> row = block_->step(last);
        if (row.empty() || !writer_.add(row)) break;
    }
    return writer_.take();
}

}  // namespace runnel::decode
