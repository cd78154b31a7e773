// Drafts of a smaller model, with a device and a cache of its own.
#pragma once

#include <exception>
#include <span>
#include <string_view>
#include <vector>

#include "engine/decode/scheduled_sequence.h"
#include "engine/decode/speculation/draft_source.h"
#include "engine/decode/speculation/draft_writer.h"
#include "engine/decode/stop_request.h"

namespace runnel::decode {

// Draws from the draft model's logits as DraftWriter does. Both models must use the same token ids (otherwise:
// translated_draft.h); an id that only one of them has is no worse than a bad guess.
//
// The draft model's sequence keeps the longest prefix that it shares with the text; cached tokens are not
// computed again. If the text exceeds the draft model's context, the model sees only the last tokens, half a
// context of them. If the cache is full because of other sequences, there is no draft.
class ModelDraft final : public DraftSource, public PendingDraft {
  public:
    // `executor` must outlive this object. with_distributions: for the rejection rule.
    ModelDraft(Executor &executor, std::string_view name, bool with_distributions = false)
        : writer_(with_distributions), entry_(executor), name_(name) {}

    Draft draft(std::span<const TokenId> text, int32_t most, float least_probability,
                Sampler &sampler) override;
    PendingDraft *begin(std::span<const TokenId> text, int32_t most, float least_probability,
                        Sampler &sampler) override;
    const void *group() const override { return &entry_.executor(); }
    void complete(std::span<PendingDraft *const> drafts, const StopRequest *stop) override;
    // Throws the error that ended the draft, if there was one.
    Draft finish() override;
    std::string_view name() const override { return name_; }

    // For complete(), between begin() and finish(): while entry() is due, the caller computes it and
    // then calls advance(), which drafts the next token; it is due in turn unless the draft is complete.
    ScheduledSequence &entry() { return entry_; }
    void advance();
    // Ends the draft with the tokens it has. `forget`: gives the cache's blocks back.
    void stop(bool forget);
    // Ends the draft with an error.
    void fail(std::exception_ptr error);

  private:
    bool read(std::span<const TokenId> text);
    void append(std::span<const TokenId> tokens);

    // The draft that is being made.
    DraftWriter writer_;
    int32_t most_ = 0;
    std::exception_ptr failure_;

    ScheduledSequence entry_;
    std::string_view name_;
    size_t skipped_ = 0;             // first tokens of the text that the sequence leaves out
    std::vector<TokenId> readable_;  // the text for the sequence, unknown ids replaced
};

}  // namespace runnel::decode
