// Drafts of the file's own draft blocks (model/draft_block.h) or of an EAGLE-3 head (model/eagle3.h): layers that predict
// the tokens after the next from the model's hidden state.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/cache/paged_cache.h"
#include "engine/decode/executor.h"
#include "engine/decode/hidden_states.h"
#include "engine/decode/speculation/draft_source.h"
#include "engine/decode/speculation/draft_writer.h"
#include "engine/model/eagle3.h"
#include "kernels/backend.h"

namespace runnel::decode {

// The draft blocks of a file, or a head, on a device, for all sequences. Their keys and values are in cache blocks with the
// same numbers as the model's (HiddenStates::group), so the model's block tables serve all. They are computed when a draft
// needs them, from the tokens and the hidden states that the model's passes left.
class DraftBlock {
  public:
    using MakeBackend = std::function<std::unique_ptr<kernels::Backend>()>;
    // `states`: those of `target`, whose program the blocks belong to. Drafts for `sequences` sequences share
    // passes, but at most kMostTogether. head: the one that `programs` is of; null: they are draft blocks. Throws
    // BackendError. Precondition: the states are HiddenStates::WithNext if there is a head.
    DraftBlock(const MakeBackend &make_backend, std::span<const kernels::Program> programs,
               const Executor &target, std::shared_ptr<HiddenStates> states, int32_t sequences = 1,
               const model::Eagle3 *head = nullptr);

    // The indices of caches that can share passes, the first one among them, in ascending order. Two caches cannot if they
    // share a cache block whose last cell a head computes for different tokens after it.
    std::vector<size_t> together(std::span<const cache::SequenceCache *const> caches) const;

    // Computes what the first step() needs of the cached tokens. False when a stop was requested. The caches must not
    // change before the last step(). At most sequences() caches, which are together(). None may be empty if there is
    // a head. Throws BackendError.
    bool begin(std::span<const cache::SequenceCache *const> caches, const std::atomic<bool> *cancel);
    struct Next {
        size_t sequence;  // index in begin()'s caches
        TokenId token;
    };
    // One more token of some of the sequences, each after its cached tokens and those of earlier steps, of which
    // it had a part in all; at most most_steps() steps. Returns the logits of the tokens that follow,
    // [next.size()][vocab], which the next step overwrites; empty when a stop was requested. Throws BackendError.
    std::span<const float> step(std::span<const Next> next);
    // A single block predicts any number of tokens, several blocks one each.
    int32_t most_steps() const;

    int32_t sequences() const { return sequences_; }
    int32_t context() const { return context_; }
    int32_t vocab() const { return vocab_; }
    bool is_head() const { return ahead_ > 0; }

  private:
    static constexpr int32_t kMostTogether = 32;
    struct Block {
        std::unique_ptr<kernels::Backend> backend;
        kernels::Slot before, state;  // the slots of the state of the token before, and of its own
    };
    // The end of a sequence, which a draft continues.
    struct Tail {
        const cache::SequenceCache *cache;
        std::vector<kernels::BlockId> table;
        std::vector<TokenId> tokens;  // those of the steps
        std::vector<float> states;    // the state that each step gave
    };
    // The cells of a cached sequence that the steps do not compute.
    int32_t cells(const cache::SequenceCache &cache) const { return cache.length() - ahead_; }
    std::span<const float> by_token(std::span<const float> rows, size_t count);
    struct Rows {  // of a pass
        std::vector<TokenId> tokens;
        std::vector<int32_t> positions, logits;
        std::vector<kernels::SequenceSpan> spans;
    };
    bool prepare(size_t block, std::span<const size_t> sequences);
    bool compute_missing(size_t block, std::span<const size_t> sequences, bool &found);
    bool execute(size_t block, std::span<float> logits);
    void copy_end(const Block &block, const Tail &tail);
    Tail tail_of(const cache::SequenceCache &cache, kernels::BlockId scratch) const;
    std::span<const kernels::BlockId> table_of(const cache::SequenceCache &cache) const;
    void add_rows(const Block &block, const Tail &tail, size_t known);
    bool chained() const { return blocks_.size() > 1; }
    size_t width() const { return static_cast<size_t>(states_->width()); }

    std::vector<Block> blocks_;
    std::shared_ptr<HiddenStates> states_;
    int32_t ahead_ = 0;            // the token of cell c is that of cell c + ahead_ of the model
    std::vector<TokenId> tokens_;  // by row of the logits; empty: row i is token i
    int32_t context_, batch_, sequences_, vocab_, rows_of_output_;
    kernels::BlockId scratch_;  // the first of kScratch cache blocks for drafted tokens of each sequence
    const std::atomic<bool> *cancel_ = nullptr;
    std::vector<Tail> tails_;
    Rows rows_;
    std::vector<float> logits_, by_token_;
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
    std::string_view name() const override { return block_->is_head() ? model::kEagle3 : "mtp"; }

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
