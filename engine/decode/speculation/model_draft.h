// Drafts of a smaller model, on a device and with a cache of its own.
#pragma once

#include <exception>
#include <span>
#include <string_view>
#include <vector>

#include "engine/decode/scheduled_sequence.h"
#include "engine/decode/speculation/draft_source.h"
#include "engine/decode/stop_request.h"

namespace runnel::decode {

// Draws from the draft model's logits with the sampler that it is given, so with the noise that the model
// itself will draw with: the two agree where their distributions do (sampler.h). The model must read and
// speak the same token ids (else: translated_draft.h); ids that only one of them has are no more than a bad
// guess.
//
// For every token there is a branch of one, its second choice: what it would say if the first were
// impossible.
//
// Its sequence is brought into line with the text by the longest common prefix; what the cache knows is not
// computed again. Of a text longer than the draft model's context it sees the last half of what fits. Where
// its cache is full, because others hold it, there is no draft.
class ModelDraft final : public DraftSource {
  public:
    // Keeps `executor`. A draft ends before a token that is less probable than requested. With distributions
    // (for the rejection rule) it ends where even the most probable token is below that: the length of a draft
    // must not depend on which token was drawn.
    ModelDraft(Executor &executor, std::string_view name, bool with_distributions = false)
        : entry_(executor), name_(name), with_distributions_(with_distributions) {}

    Draft draft(std::span<const TokenId> text, int32_t most, float least_probability,
                Sampler &sampler) override;
    ModelDraft *begin(std::span<const TokenId> text, int32_t most, float least_probability,
                      Sampler &sampler) override;
    // Throws what the draft failed with.
    Draft finish() override;
    std::string_view name() const override { return name_; }

    // For draft_together(): between begin() and finish(), its tokens are computed as long as they are due, and
    // after each time advance() takes the next one, which is due then unless the draft is complete.
    ScheduledSequence &entry() { return entry_; }
    void advance();
    // Ends the draft where it is. `forget`: gives the cache's blocks back.
    void stop(bool forget);
    // Ends the draft with an error.
    void fail(std::exception_ptr error);

  private:
    bool read(std::span<const TokenId> text);
    void append(std::span<const TokenId> tokens);
    std::span<const float> whole(const LogitRow &row);
    bool add_token();

    // The draft that is being made.
    Draft draft_;
    int32_t most_ = 0;
    float least_probability_ = 0;
    Sampler *sampler_ = nullptr;
    std::exception_ptr failure_;

    ScheduledSequence entry_;
    std::string_view name_;
    bool with_distributions_;
    size_t skipped_ = 0;             // tokens of the text in front of what the sequence holds
    std::vector<TokenId> history_;   // the text and the draft
    std::vector<TokenId> readable_;  // what the sequence is to hold
    std::vector<float> read_;        // a row that candidates do not decide
    std::vector<float> padded_;      // logits, where the model has fewer than the sampler wants
};

// Drives drafts that have begun, each to its end, in passes of all those that share an executor. A stop that
// is requested ends them where they are, and so does a cache that is full. A DecodeError or BackendError ends
// the drafts that it concerns, whose finish() throws it: one whose row cannot be sampled from, or all of an
// executor whose device fails.
void draft_together(std::span<ModelDraft *const> drafts, const StopRequest *stop);

}  // namespace runnel::decode
