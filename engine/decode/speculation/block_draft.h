// Drafts of the file's own draft block (model/draft_block.h): one layer that predicts the token after next from
// the model's hidden state.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/cache/paged_cache.h"
#include "engine/decode/executor.h"
#include "engine/decode/hidden_states.h"
#include "engine/decode/speculation/draft_source.h"
#include "engine/decode/speculation/draft_writer.h"
#include "kernels/backend.h"

namespace runnel::decode {

// The block on a device, for all sequences. Its keys and values are in blocks with the same numbers as the
// model's, so the model's block tables serve both. They are computed when a draft needs them, from the tokens
// and the hidden states that the model's passes left.
class DraftBlock {
  public:
    // `states`: those of `target`, whose program the block belongs to. Throws BackendError.
    DraftBlock(std::unique_ptr<kernels::Backend> backend, const kernels::Program &program,
               const Executor &target, std::shared_ptr<HiddenStates> states);

    // Computes what is missing of the cached tokens, and prepares for step(). False when a stop was requested.
    // The cache must not change before the last step(). Throws BackendError.
    bool begin(const cache::SequenceCache &cache, const std::atomic<bool> *cancel);
    // The next token, after the cached ones and those of earlier steps; at most kMostDrafts + 1 steps. Returns
    // the logits of the token that follows it, [vocab], which the next step overwrites; empty when a stop was
    // requested. Throws BackendError.
    std::span<const float> step(TokenId token);

    int32_t context() const { return context_; }
    int32_t vocab() const { return static_cast<int32_t>(logits_.size()); }

  private:
    bool compute(const cache::SequenceCache &cache, int32_t first, int32_t count);

    std::unique_ptr<kernels::Backend> backend_;
    std::shared_ptr<HiddenStates> states_;
    kernels::Slot before_, hidden_;  // the state of the token before, and the block's own
    int32_t context_, batch_;
    kernels::BlockId scratch_;  // the first of kScratch blocks for drafted tokens
    const std::atomic<bool> *cancel_ = nullptr;
    std::vector<kernels::BlockId> table_;  // of the draft
    int32_t length_ = 0;                   // cells, drafted ones included
    std::vector<float> state_, logits_;
    std::vector<int32_t> positions_;
};

class BlockDraft final : public DraftSource {
  public:
    // `block` must outlive this object. with_distributions: for the rejection rule.
    BlockDraft(DraftBlock &block, bool with_distributions) : block_(&block), writer_(with_distributions) {}

    void follow(const cache::SequenceCache *cache, const StopRequest *stop) override;
    Draft draft(std::span<const TokenId> text, int32_t most, float least_probability,
                Sampler &sampler) override;
    std::string_view name() const override { return "mtp"; }

  private:
    DraftBlock *block_;
    DraftWriter writer_;
    const cache::SequenceCache *cache_ = nullptr;
    const std::atomic<bool> *cancel_ = nullptr;
};

}  // namespace runnel::decode
