// Drafts of the file's own draft block (model/draft_block.h): one layer that predicts the token after next from
// the model's hidden state.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
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
    // `states`: those of `target`, whose program the block belongs to. Drafts for `sequences` sequences share
    // passes, but at most kMostTogether. Throws BackendError.
    DraftBlock(std::unique_ptr<kernels::Backend> backend, const kernels::Program &program,
               const Executor &target, std::shared_ptr<HiddenStates> states, int32_t sequences = 1);

    // Computes what is missing of the cached tokens, and prepares for step(). False when a stop was requested.
    // The caches must not change before the last step(). At most sequences() caches. Throws BackendError.
    bool begin(std::span<const cache::SequenceCache *const> caches, const std::atomic<bool> *cancel);
    struct Next {
        size_t sequence;  // index in begin()'s caches
        TokenId token;
    };
    // One more token of some of the sequences, each after its cached tokens and those of earlier steps; at most
    // kMostDrafts + 1 steps. Returns the logits of the tokens that follow, [next.size()][vocab], which the next
    // step overwrites; empty when a stop was requested. Throws BackendError.
    std::span<const float> step(std::span<const Next> next);

    int32_t sequences() const { return sequences_; }
    int32_t context() const { return context_; }
    int32_t vocab() const { return vocab_; }

  private:
    static constexpr int32_t kMostTogether = 32;
    // The end of a sequence, which a draft continues.
    struct Tail {
        std::vector<kernels::BlockId> table;
        int32_t length = 0;        // cells, drafted ones included
        std::vector<float> state;  // of the last cell
    };
    bool compute_missing(std::span<const cache::SequenceCache *const> caches, bool &found);
    Tail tail_of(const cache::SequenceCache &cache, kernels::BlockId scratch);

    std::unique_ptr<kernels::Backend> backend_;
    std::shared_ptr<HiddenStates> states_;
    kernels::Slot before_, hidden_;  // the state of the token before, and the block's own
    int32_t context_, batch_, sequences_, vocab_;
    kernels::BlockId scratch_;  // the first of kScratch blocks for drafted tokens of each sequence
    const std::atomic<bool> *cancel_ = nullptr;
    std::vector<Tail> tails_;
    std::vector<float> logits_;
    // Of a pass.
    std::vector<TokenId> tokens_;
    std::vector<int32_t> positions_, rows_;
    std::vector<kernels::SequenceSpan> spans_;
};

class BlockDraft final : public DraftSource, public PendingDraft {
  public:
    // `block` must outlive this object. with_distributions: for the rejection rule.
    BlockDraft(DraftBlock &block, bool with_distributions) : block_(&block), writer_(with_distributions) {}

    void follow(const cache::SequenceCache *cache, const StopRequest *stop) override;
    Draft draft(std::span<const TokenId> text, int32_t most, float least_probability,
                Sampler &sampler) override;
    PendingDraft *begin(std::span<const TokenId> text, int32_t most, float least_probability,
                        Sampler &sampler) override;
    Draft finish() override;
    const void *group() const override { return block_; }
    void complete(std::span<PendingDraft *const> drafts, const StopRequest *stop) override;
    std::string_view name() const override { return "mtp"; }

  private:
    static void complete(DraftBlock &block, std::span<PendingDraft *const> drafts,
                         const std::atomic<bool> *cancel);
    bool is_known(TokenId id) const { return id >= 0 && id < block_->vocab(); }
    bool advance(std::span<const float> row);

    DraftBlock *block_;
    DraftWriter writer_;
    const cache::SequenceCache *cache_ = nullptr;
    const std::atomic<bool> *cancel_ = nullptr;
    TokenId last_ = text::kNoToken;  // of the text and the draft
    std::exception_ptr failure_;
};

}  // namespace runnel::decode
