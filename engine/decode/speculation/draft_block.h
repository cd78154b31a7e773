// The draft blocks of a file (model/draft_block.h) or an EAGLE-3 head (model/eagle3.h) on a device: layers that predict the
// tokens after the next from the model's hidden state, and attend to keys and values of their own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/cache/paged_cache.h"
#include "engine/decode/executor.h"
#include "engine/decode/hidden_states.h"
#include "engine/decode/speculation/draft_cells.h"
#include "engine/decode/speculation/state_draft.h"
#include "engine/model/draft_head.h"
#include "kernels/backend.h"

namespace runnel::decode {

class DraftBlock final : public StateDrafter {
  public:
    using MakeBackend = std::function<std::unique_ptr<kernels::Backend>()>;
    // `states`: those of `target`, whose program the blocks belong to. Drafts for `sequences` sequences share
    // passes, at most kMostDraftedTogether of them. head: the one that `programs` is of; null: they are draft blocks. Throws
    // BackendError. Precondition: the states are HiddenStates::WithNext if there is a head.
    DraftBlock(const MakeBackend &make_backend, std::span<const kernels::Program> programs,
               const Executor &target, std::shared_ptr<HiddenStates> states, int32_t sequences = 1,
               const model::DraftHead *head = nullptr);

    // Two caches cannot share a pass if they share a cache block whose last cell a head computes for different tokens
    // after it.
    std::vector<size_t> together(std::span<const cache::SequenceCache *const> caches) const override;
    bool begin(std::span<const cache::SequenceCache *const> caches, int32_t most,
               const std::atomic<bool> *cancel) override;
    std::span<const float> step(std::span<const Next> next) override;
    // A single block predicts any number of tokens, several blocks one each.
    int32_t most_steps() const override;

    int32_t sequences() const override { return sequences_; }
    int32_t context() const override { return context_; }
    int32_t vocab() const override { return vocab_; }
    bool needs_state() const override { return is_head(); }
    std::string_view name() const override { return is_head() ? "eagle3" : "mtp"; }

  private:
    bool is_head() const { return states_->pairs() == HiddenStates::Pairs::WithNext; }
    struct Block {
        std::unique_ptr<kernels::Backend> backend;
        kernels::Slot before, state;  // the slots of the state of the token before, and of its own
    };
    // The end of a sequence, which a draft continues.
    struct Tail {
        DraftCells::Place place;
        std::vector<TokenId> tokens;  // those of the steps
        std::vector<float> states;    // the state that each step gave
    };
    struct Rows {  // of a pass
        std::vector<TokenId> tokens;
        std::vector<int32_t> positions, logits;
        std::vector<kernels::SequenceSpan> spans;
    };
    bool prepare(size_t block, std::span<const size_t> sequences);
    void add_rows(const Block &block, const Tail &tail, size_t known);
    bool chained() const { return blocks_.size() > 1; }
    size_t width() const { return static_cast<size_t>(states_->width()); }

    std::vector<Block> blocks_;
    std::shared_ptr<HiddenStates> states_;
    LogitsByToken by_token_;
    int32_t context_, sequences_, vocab_, rows_of_output_, batch_;
    DraftCells cells_;
    const std::atomic<bool> *cancel_ = nullptr;
    std::vector<Tail> tails_;
    Rows rows_;
    std::vector<float> logits_;
};

}  // namespace runnel::decode
