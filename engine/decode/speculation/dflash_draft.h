// A DFlash drafter (model/dflash.h) on a device: it guesses a whole block of tokens in one pass.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/decode/executor.h"
#include "engine/decode/hidden_states.h"
#include "engine/decode/speculation/draft_cells.h"
#include "engine/decode/speculation/state_draft.h"
#include "engine/model/draft_head.h"
#include "kernels/backend.h"

namespace runnel::decode {

class DFlashDraft final : public StateDrafter {
  public:
    using MakeBackend = std::function<std::unique_ptr<kernels::Backend>()>;
    // `states`: those of `target`, with HiddenStates::Pairs::Alone. make_backend: called twice; both on one device. Drafts
    // for `sequences` sequences share passes, at most kMostDraftedTogether of them. Throws BackendError.
    DFlashDraft(const MakeBackend &make_backend, const model::DraftHead &head, const Executor &target,
                std::shared_ptr<HiddenStates> states, int32_t sequences = 1);

    bool begin(std::span<const cache::SequenceCache *const> caches, int32_t most,
               const std::atomic<bool> *cancel) override;
    // The first step computes the block; the logits of later ones do not depend on the tokens before.
    std::span<const float> step(std::span<const Next> next) override;
    int32_t most_steps() const override { return block_tokens_ - 1; }
    bool at_once() const override { return true; }

    int32_t sequences() const override { return sequences_; }
    int32_t context() const override { return context_; }
    int32_t vocab() const override { return vocab_; }
    bool needs_state() const override { return true; }
    std::string_view name() const override { return "dflash"; }

  private:
    bool guess(std::span<const Next> next);

    std::unique_ptr<kernels::Backend> text_, block_;  // of the programs DraftHead::program and block
    kernels::Slot state_;
    LogitsByToken by_token_;
    int32_t block_tokens_, mask_;
    bool both_ways_;
    int32_t context_, sequences_, vocab_, rows_of_output_;
    DraftCells cells_;
    const std::atomic<bool> *cancel_ = nullptr;
    std::vector<DraftCells::Place> places_;
    size_t done_ = 0;             // steps
    int32_t most_ = 0;            // the most steps
    std::vector<float> guesses_;  // [sequences][most_][rows of the output matrix]
    std::vector<float> logits_;   // of a step
};

}  // namespace runnel::decode
