#include "engine/decode/speculation/state_draft.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/decode/error.h"
#include "engine/decode/scheduled_sequence.h"
#include "engine/decode/stop_request.h"
#include "kernels/backend.h"

namespace runnel::decode {

std::vector<size_t> StateDrafter::together(std::span<const cache::SequenceCache *const> caches) const {
    std::vector<size_t> all(caches.size());
    std::iota(all.begin(), all.end(), size_t{0});
    return all;
}

std::span<const float> LogitsByToken::of(std::span<const float> rows) {
    if (tokens_.empty()) return rows;
    constexpr float kNever = -1e30f;  // finite, for the softmax
    const size_t count = rows.size() / tokens_.size();
    logits_.assign(count * vocab_, kNever);
    for (size_t i = 0; i < count; ++i)
        for (size_t row = 0; row < tokens_.size(); ++row)
            logits_[i * vocab_ + static_cast<size_t>(tokens_[row])] = rows[i * tokens_.size() + row];
    return logits_;
}

void StateDraft::follow(const cache::SequenceCache *cache, const StopRequest *stop) {
    cache_ = cache;
    cancel_ = stop ? stop->flag() : nullptr;
}

PendingDraft *StateDraft::begin(std::span<const TokenId> text, int32_t most, float least_probability,
                                Sampler &sampler) {
    const auto length = static_cast<int64_t>(text.size());
    most = static_cast<int32_t>(
        std::min<int64_t>({most, drafter_->context() - length, kMostDrafts, drafter_->most_steps()}));
    failure_ = nullptr;
    writer_.begin(text, most, least_probability, sampler);
    // (An evicted sequence has no cells.)
    if (!cache_ || cache_->length() + 1 != length || most <= 0 || !is_known(text.back())) return nullptr;
    if (drafter_->needs_state() && cache_->length() == 0) return nullptr;  // there is no state yet
    last_ = text.back();
    most_ = most;
    return this;
}

Draft StateDraft::finish() {
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    return writer_.take();
}

Draft StateDraft::draft(std::span<const TokenId> text, int32_t most, float least_probability,
                        Sampler &sampler) {
    if (PendingDraft *self = begin(text, most, least_probability, sampler))
        draft_together({&self, 1}, nullptr);
    return finish();
}

// Adds the next token. False when the draft is complete.
bool StateDraft::advance(std::span<const float> row) {
    try {
        if (!writer_.add(row)) return false;
    } catch (const DecodeError &) {
        failure_ = std::current_exception();
        return false;
    }
    last_ = writer_.last();
    return is_known(last_);
}

void StateDraft::complete(std::span<PendingDraft *const> drafts, const StopRequest *stop) {
    const std::atomic<bool> *cancel = stop ? stop->flag() : cancel_;
    std::vector<PendingDraft *> waiting(drafts.begin(), drafts.end());
    while (!waiting.empty()) {
        std::vector<const cache::SequenceCache *> caches;
        for (PendingDraft *draft : waiting) caches.push_back(static_cast<StateDraft *>(draft)->cache_);
        std::vector<size_t> chosen = drafter_->together(caches);
        chosen.resize(std::min(chosen.size(), static_cast<size_t>(drafter_->sequences())));
        std::vector<PendingDraft *> now;
        for (const size_t i : chosen) now.push_back(std::exchange(waiting[i], nullptr));
        std::erase(waiting, nullptr);
        complete(*drafter_, now, cancel);
    }
}

void StateDraft::complete(StateDrafter &drafter, std::span<PendingDraft *const> drafts,
                          const std::atomic<bool> *cancel) {
    std::vector<StateDraft *> all;
    std::vector<const cache::SequenceCache *> caches;
    std::vector<StateDrafter::Next> next, after;
    int32_t most = 0;
    for (PendingDraft *pending : drafts) {
        auto *draft = static_cast<StateDraft *>(pending);
        next.push_back({all.size(), draft->last_});
        all.push_back(draft);
        caches.push_back(draft->cache_);
        most = std::max(most, draft->most_);
    }
    try {
        if (!drafter.begin(caches, most, cancel)) return;
        while (!next.empty()) {
            std::span<const float> rows = drafter.step(next);
            if (rows.empty()) return;
            after.clear();
            for (const StateDrafter::Next &one : next) {
                const auto vocab = static_cast<size_t>(drafter.vocab());
                if (all[one.sequence]->advance(rows.first(vocab)))
                    after.push_back({one.sequence, all[one.sequence]->last_});
                rows = rows.subspan(vocab);
            }
            next.swap(after);
        }
    } catch (const kernels::BackendError &) {
        for (StateDraft *draft : all) draft->failure_ = std::current_exception();
    }
}

}  // namespace runnel::decode
