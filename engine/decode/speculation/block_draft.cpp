#include "engine/decode/speculation/block_draft.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "engine/decode/error.h"
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
                       const Executor &target, std::shared_ptr<HiddenStates> states, int32_t sequences)
    : backend_(std::move(backend)),
      states_(std::move(states)),
      before_(program.parts.front().in.front()),
      hidden_(program.parts.front().out.front()),
      context_(target.context()),
      batch_(target.batch_size()),
      sequences_(std::clamp(sequences, 1, kMostTogether)),
      vocab_(static_cast<int32_t>(program.vocab)),
      scratch_(static_cast<BlockId>(states_->blocks())) {
    const CacheTypes types = target.types();
    batch_ = std::max(batch_, sequences_);
    backend_->load(program,
                   {.blocks = {scratch_ + kScratch * sequences_},
                    .k = types.k,
                    .v = types.v,
                    .context = context_ + kScratch * kBlockTokens},
                   batch_);
}

// Computes cells that are missing, in one pass; `found`: there were some. False when a stop was requested.
bool DraftBlock::compute_missing(std::span<const cache::SequenceCache *const> caches, bool &found) {
    tokens_.clear(), positions_.clear(), spans_.clear();
    std::vector<bool> written(static_cast<size_t>(scratch_));  // blocks, in this pass
    const kernels::SlotRows rows = backend_->exchange(before_);
    for (const cache::SequenceCache *cache : caches) {
        const int32_t length = cache->length(), room = batch_ - static_cast<int32_t>(tokens_.size());
        const std::span<const BlockId> table = cache->table(0);
        const auto used = table.first(static_cast<size_t>((length + kBlockTokens - 1) / kBlockTokens));
        // A sequence that shares a block with an earlier one finds its cells in the next pass.
        if (room == 0 ||
            std::ranges::any_of(used, [&](BlockId id) { return written[static_cast<size_t>(id)]; }))
            continue;
        const int32_t from = states_->next_unmarked(table, 0, length);
        int32_t end = from;
        while (end < std::min(length, from + room) && !states_->is_marked(table, end)) ++end;
        if (end == from) continue;
        spans_.push_back({static_cast<int32_t>(tokens_.size()), end - from, from, {table}});
        for (int32_t cell = from; cell < end; ++cell) {
            states_->get(table, cell - 1,
                         {rows.data + static_cast<int64_t>(tokens_.size()) * rows.stride,
                          static_cast<size_t>(states_->width())});
            tokens_.push_back(cache->tokens()[static_cast<size_t>(cell)]);
            positions_.push_back(cell);
            written[static_cast<size_t>(table[static_cast<size_t>(cell / kBlockTokens)])] = true;
        }
    }
    found = !spans_.empty();
    if (!found) return true;
    if (!backend_->execute({tokens_, positions_, spans_, {}, cancel_}, {})) return false;
    for (const kernels::SequenceSpan &span : spans_)
        for (int32_t i = 0; i < span.count; ++i) states_->mark(span.tables[0], span.past + i);
    return true;
}

DraftBlock::Tail DraftBlock::tail_of(const cache::SequenceCache &cache, BlockId scratch) {
    const std::span<const BlockId> table = cache.table(0);
    Tail tail{.table = {},
              .length = cache.length(),
              .state = std::vector<float>(static_cast<size_t>(states_->width()))};
    // The last block may be shared with other sequences, which have other tokens after these.
    const int32_t whole = tail.length / kBlockTokens;
    tail.table.assign(table.begin(), table.begin() + whole);
    for (int32_t i = 0; i < kScratch; ++i) tail.table.push_back(scratch + i);
    if (tail.length % kBlockTokens > 0) {
        const kernels::BlockCopy copy{table[static_cast<size_t>(whole)], scratch};
        backend_->copy_blocks(0, {&copy, 1});
    }
    states_->get(table, tail.length - 1, tail.state);
    return tail;
}

bool DraftBlock::begin(std::span<const cache::SequenceCache *const> caches, const std::atomic<bool> *cancel) {
    assert(caches.size() <= static_cast<size_t>(sequences_));
    cancel_ = cancel;
    for (bool found = true; found;)
        if (!compute_missing(caches, found)) return false;
    tails_.clear();
    for (const cache::SequenceCache *cache : caches)
        tails_.push_back(tail_of(*cache, scratch_ + kScratch * static_cast<BlockId>(tails_.size())));
    return true;
}

std::span<const float> DraftBlock::step(std::span<const Next> next) {
    tokens_.clear(), positions_.clear(), spans_.clear(), rows_.clear();
    const kernels::SlotRows in = backend_->exchange(before_);
    for (const auto &[sequence, token] : next) {
        const Tail &tail = tails_[sequence];
        assert(tail.length < static_cast<int32_t>(tail.table.size()) * kBlockTokens);
        const auto row = static_cast<int32_t>(tokens_.size());
        std::ranges::copy(tail.state, in.data + row * in.stride);
        tokens_.push_back(token);
        positions_.push_back(tail.length);
        spans_.push_back({row, 1, tail.length, {tail.table}});
        rows_.push_back(row);
    }
    logits_.resize(next.size() * static_cast<size_t>(vocab_));
    if (!backend_->execute({tokens_, positions_, spans_, rows_, cancel_}, logits_)) return {};
    const kernels::SlotRows out = backend_->exchange(hidden_);
    for (const int32_t row : rows_) {
        Tail &tail = tails_[next[static_cast<size_t>(row)].sequence];
        std::copy_n(out.data + row * out.stride, tail.state.size(), tail.state.begin());
        ++tail.length;
    }
    return logits_;
}

void BlockDraft::follow(const cache::SequenceCache *cache, const StopRequest *stop) {
    cache_ = cache;
    cancel_ = stop ? stop->flag() : nullptr;
}

PendingDraft *BlockDraft::begin(std::span<const TokenId> text, int32_t most, float least_probability,
                                Sampler &sampler) {
    const auto length = static_cast<int64_t>(text.size());
    most = static_cast<int32_t>(std::min<int64_t>({most, block_->context() - length, kMostDrafts}));
    failure_ = nullptr;
    writer_.begin(text, most, least_probability, sampler);
    // (An evicted sequence has no cells.)
    if (!cache_ || cache_->length() + 1 != length || most <= 0 || !is_known(text.back())) return nullptr;
    last_ = text.back();
    return this;
}

Draft BlockDraft::finish() {
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    return writer_.take();
}

Draft BlockDraft::draft(std::span<const TokenId> text, int32_t most, float least_probability,
                        Sampler &sampler) {
    if (PendingDraft *self = begin(text, most, least_probability, sampler))
        draft_together({&self, 1}, nullptr);
    return finish();
}

// Adds the next token. False when the draft is complete.
bool BlockDraft::advance(std::span<const float> row) {
    try {
        if (!writer_.add(row)) return false;
    } catch (const DecodeError &) {
        failure_ = std::current_exception();
        return false;
    }
    last_ = writer_.last();
    return is_known(last_);
}

void BlockDraft::complete(std::span<PendingDraft *const> drafts, const StopRequest *stop) {
    const auto most = static_cast<size_t>(block_->sequences());
    for (size_t first = 0; first < drafts.size(); first += most)
        complete(*block_, drafts.subspan(first, std::min(most, drafts.size() - first)),
                 stop ? stop->flag() : cancel_);
}

void BlockDraft::complete(DraftBlock &block, std::span<PendingDraft *const> drafts,
                          const std::atomic<bool> *cancel) {
    std::vector<BlockDraft *> all;
    std::vector<const cache::SequenceCache *> caches;
    std::vector<DraftBlock::Next> next, after;
    for (PendingDraft *pending : drafts) {
        auto *draft = static_cast<BlockDraft *>(pending);
        next.push_back({all.size(), draft->last_});
        all.push_back(draft);
        caches.push_back(draft->cache_);
    }
    try {
        if (!block.begin(caches, cancel)) return;
        while (!next.empty()) {
            std::span<const float> rows = block.step(next);
            if (rows.empty()) return;
            after.clear();
            for (const DraftBlock::Next &one : next) {
                const auto vocab = static_cast<size_t>(block.vocab());
                if (all[one.sequence]->advance(rows.first(vocab)))
                    after.push_back({one.sequence, all[one.sequence]->last_});
                rows = rows.subspan(vocab);
            }
            next.swap(after);
        }
    } catch (const kernels::BackendError &) {
        for (BlockDraft *draft : all) draft->failure_ = std::current_exception();
    }
}

}  // namespace runnel::decode
