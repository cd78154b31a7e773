#include "engine/decode/speculation/assistant_draft.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <utility>

namespace runnel::decode {

AssistantDraft::AssistantDraft(std::unique_ptr<kernels::Backend> backend, const model::DraftHead &head,
                               const Executor &target, std::shared_ptr<const HiddenStates> states,
                               int32_t sequences)
    : backend_(std::move(backend)),
      before_(head.program.parts.front().in.front()),
      after_(head.program.parts.front().out.front()),
      states_(std::move(states)),
      context_(target.context()),
      sequences_(std::clamp(sequences, 1, kMostDraftedTogether)),
      vocab_(target.vocab()) {
    const kernels::CacheConfig cache = target.shared_cache();
    if (!cache.pools)
        throw kernels::BackendError(kernels::BackendError::Kind::Failed,
                                    "the model's cache is not on a single device");
    groups_ = cache.blocks.size();
    backend_->load(head.program, cache, sequences_);
}

bool AssistantDraft::begin(std::span<const cache::SequenceCache *const> caches, int32_t /*most*/,
                           const std::atomic<bool> *cancel) {
    assert(caches.size() <= static_cast<size_t>(sequences_));
    cancel_ = cancel;
    tails_.clear();
    for (const cache::SequenceCache *cache : caches) {
        assert(cache->length() > 0);
        std::vector<float> state(static_cast<size_t>(states_->width()));
        states_->get(cache->table(states_->group()), cache->length() - 1, state);
        tails_.push_back({cache, std::move(state)});
    }
    return true;
}

std::span<const float> AssistantDraft::step(std::span<const Next> next) {
    const auto count = static_cast<int32_t>(next.size());
    std::vector<int32_t> tokens, positions, rows(next.size());
    std::vector<kernels::SequenceSpan> spans;
    std::iota(rows.begin(), rows.end(), 0);
    const kernels::SlotRows in = backend_->exchange(before_);
    for (int32_t i = 0; i < count; ++i) {
        const Tail &tail = tails_[next[static_cast<size_t>(i)].sequence];
        const int32_t length = tail.cache->length();
        tokens.push_back(next[static_cast<size_t>(i)].token);
        positions.push_back(length);
        // Nothing is appended, so the row takes the place of the last cell, up to which it attends.
        spans.push_back({.first = i, .count = 1, .past = length - 1, .tables = {}});
        for (size_t group = 0; group < groups_; ++group)
            spans.back().tables.push_back(tail.cache->table(group));
        std::ranges::copy(tail.state, in.data + i * in.stride);
    }
    logits_.resize(next.size() * static_cast<size_t>(vocab_));
    if (!backend_->execute({tokens, positions, spans, rows, cancel_}, logits_)) return {};
    const kernels::SlotRows out = backend_->exchange(after_);
    for (int32_t i = 0; i < count; ++i) {
        std::vector<float> &state = tails_[next[static_cast<size_t>(i)].sequence].state;
        std::copy_n(out.data + i * out.stride, state.size(), state.begin());
    }
    return logits_;
}

}  // namespace runnel::decode
