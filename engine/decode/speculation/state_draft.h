// Drafts made from the model's hidden states (hidden_states.h): by the file's own draft blocks or an EAGLE-3 head
// (draft_block.h), by a Gemma 4 assistant (assistant_draft.h), or by a DFlash drafter (dflash_draft.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/cache/paged_cache.h"
#include "engine/decode/scheduled_sequence.h"
#include "engine/decode/speculation/draft_source.h"
#include "engine/decode/speculation/draft_writer.h"
#include "engine/text/token.h"

namespace runnel::decode {

using text::TokenId;

// Layers on a device that predict tokens for all sequences of a model, from its hidden states.
class StateDrafter {
  public:
    virtual ~StateDrafter() = default;

    // The indices of caches that can share passes, the first one among them, in ascending order.
    virtual std::vector<size_t> together(std::span<const cache::SequenceCache *const> caches) const;

    // Computes what the first step() needs of the cached tokens. False when a stop was requested. The caches must not
    // change before the last step(). At most sequences() caches, which are together(). None may be empty if
    // needs_state(). most: no sequence has a part in more steps; at most most_steps(). Throws BackendError.
    virtual bool begin(std::span<const cache::SequenceCache *const> caches, int32_t most,
                       const std::atomic<bool> *cancel) = 0;
    struct Next {
        size_t sequence;  // index in begin()'s caches
        TokenId token;
    };
    // One more token of some of the sequences, each after its cached tokens and those of earlier steps, of which
    // it had a part in all. Returns the logits of the tokens that follow,
    // [next.size()][vocab], which the next step overwrites; empty when a stop was requested. Throws BackendError.
    virtual std::span<const float> step(std::span<const Next> next) = 0;
    virtual int32_t most_steps() const { return kMostDrafts + 1; }
    virtual bool at_once() const { return false; }  // the first step computes the others, too

    virtual int32_t sequences() const = 0;      // that can share a pass, at most kMostDraftedTogether
    virtual int32_t context() const = 0;        // of the model
    virtual int32_t vocab() const = 0;          // of the model
    virtual bool needs_state() const = 0;       // there is no draft before the model has computed a token
    virtual std::string_view name() const = 0;  // DraftSource::name()
};

// The logits of the model's tokens from those of the rows of a drafter's output matrix. Tokens without a row are never drafted.
class LogitsByToken {
  public:
    // tokens: by row; empty: row i is token i. vocab: the model's.
    LogitsByToken(std::vector<TokenId> tokens, int32_t vocab)
        : tokens_(std::move(tokens)), vocab_(static_cast<size_t>(vocab)) {}
    // rows: [n][rows of the matrix]. Returns [n][vocab]: `rows` itself or memory of this object.
    std::span<const float> of(std::span<const float> rows);

  private:
    std::vector<TokenId> tokens_;
    size_t vocab_;
    std::vector<float> logits_;
};

class StateDraft final : public DraftSource, public PendingDraft {
  public:
    // `drafter` must outlive this object. with_distributions: for the rejection rule.
    StateDraft(StateDrafter &drafter, bool with_distributions)
        : drafter_(&drafter), writer_(with_distributions) {}

    void follow(const cache::SequenceCache *cache, const StopRequest *stop) override;
    Draft draft(std::span<const TokenId> text, int32_t most, float least_probability,
                Sampler &sampler) override;
    PendingDraft *begin(std::span<const TokenId> text, int32_t most, float least_probability,
                        Sampler &sampler) override;
    Draft finish() override;
    const void *group() const override { return drafter_; }
    void complete(std::span<PendingDraft *const> drafts, const StopRequest *stop) override;
    std::string_view name() const override { return drafter_->name(); }

  private:
    static void complete(StateDrafter &drafter, std::span<PendingDraft *const> drafts,
                         const std::atomic<bool> *cancel);
    bool is_known(TokenId id) const { return id >= 0 && id < drafter_->vocab(); }
    bool advance(std::span<const float> row);

    StateDrafter *drafter_;
    DraftWriter writer_;
    const cache::SequenceCache *cache_ = nullptr;
    const std::atomic<bool> *cancel_ = nullptr;
    TokenId last_ = text::kNoToken;  // of the text and the draft
    int32_t most_ = 0;               // tokens of the draft
    std::exception_ptr failure_;
};

}  // namespace runnel::decode
