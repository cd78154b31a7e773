// A Gemma 4 assistant (model/assistant.h) on the model's device: it reads the model's cache and writes nothing there.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/cache/paged_cache.h"
#include "engine/decode/executor.h"
#include "engine/decode/hidden_states.h"
#include "engine/decode/speculation/state_draft.h"
#include "engine/model/draft_head.h"
#include "kernels/backend.h"

namespace runnel::decode {

class AssistantDraft final : public StateDrafter {
  public:
    // backend: one on the device of `target`, whose hidden states are in `states`. Drafts for `sequences` sequences share
    // passes, at most kMostDraftedTogether of them. `target` must outlive this object. Throws BackendError, also if the target's
    // cache is not that of a single device.
    AssistantDraft(std::unique_ptr<kernels::Backend> backend, const model::DraftHead &head,
                   const Executor &target, std::shared_ptr<const HiddenStates> states, int32_t sequences = 1);

    bool begin(std::span<const cache::SequenceCache *const> caches, int32_t most,
               const std::atomic<bool> *cancel) override;
    std::span<const float> step(std::span<const Next> next) override;

    int32_t sequences() const override { return sequences_; }
    int32_t context() const override { return context_; }
    int32_t vocab() const override { return vocab_; }
    bool needs_state() const override { return true; }
    std::string_view name() const override { return "assistant"; }

  private:
    // A sequence, and the state that its next token is computed from.
    struct Tail {
        const cache::SequenceCache *cache;
        std::vector<float> state;
    };

    std::unique_ptr<kernels::Backend> backend_;
    kernels::Slot before_, after_;
    std::shared_ptr<const HiddenStates> states_;
    int32_t context_, sequences_, vocab_;
    size_t groups_ = 0;  // of the model's cache
    const std::atomic<bool> *cancel_ = nullptr;
    std::vector<Tail> tails_;
    std::vector<float> logits_;
};

}  // namespace runnel::decode
