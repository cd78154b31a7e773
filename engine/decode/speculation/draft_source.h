// The interface of draft sources: a smaller model, the text itself, or a part of the model.
//
// A source may guess anything: the target model verifies every token (speculator.h), so a bad guess costs
// time and never changes a text.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/cache/paged_cache.h"
#include "engine/decode/sampler.h"

namespace runnel::decode {

// An alternative to the end of a draft.
struct Branch {
    size_t shared = 0;            // it follows this many tokens of the draft, fewer than the draft has
    std::vector<TokenId> tokens;  // after those; the first differs from the draft's token there
    // The source's own probability of each token if those before it are right (for the first one: if the
    // draft's token is wrong).
    std::vector<float> probabilities;
};

// The guess of a source, possibly with alternatives.
struct Draft {
    std::vector<TokenId> tokens;
    // The source's own probability of each token, 1 if it has none; as many as tokens.
    std::vector<float> probabilities;
    // The distribution of each token, for the rejection rule only. Empty: all mass is on the token itself.
    std::vector<Distribution> distributions;
    // Alternatives: second choices, or continuations from other places of the text. None under the rejection
    // rule.
    std::vector<Branch> branches = {};
};

class StopRequest;

// A draft that has begun and needs passes of a device, which drafts of other sequences can share.
class PendingDraft {
  public:
    virtual ~PendingDraft() = default;
    // Drafts with the same group can share passes.
    virtual const void *group() const = 0;
    // Completes `drafts`, this one among them, all of its group. See draft_together().
    virtual void complete(std::span<PendingDraft *const> drafts, const StopRequest *stop) = 0;
};

// Completes drafts that have begun; those of a group share passes. A requested stop or a full cache ends drafts
// with the tokens they have. A DecodeError or BackendError ends the draft whose row cannot be sampled from or, if
// the device fails, all drafts of its group; DraftSource::finish() of these drafts throws it.
void draft_together(std::span<PendingDraft *const> drafts, const StopRequest *stop);

// One per sequence.
class DraftSource {
  public:
    virtual ~DraftSource() = default;

    // Before each draft: the target's cache of the sequence (null: not known), which stays as it is until the
    // draft is made. Its tokens are those of the text, or fewer. A requested stop may end the draft.
    virtual void follow(const cache::SequenceCache * /*cache*/, const StopRequest * /*stop*/) {}

    // Guesses what follows `text`: all tokens of the sequence, of which the target has not
    // computed the last one yet. At most `most` tokens, possibly none, and none below
    // `least_probability` (unless the source knows no probabilities). `sampler`: the target's,
    // whose noise and history rules the source shares. Most calls extend the text of the call
    // before; after an undo, a context shift or rejected drafts they do not. Throws DecodeError
    // and what its backend throws.
    virtual Draft draft(std::span<const TokenId> text, int32_t most, float least_probability,
                        Sampler &sampler) = 0;

    // draft() in two parts, so that the drafts of several sequences can be made in common passes. If begin()
    // returns a draft, draft_together() must run it before finish(); `sampler` must live until then.
    virtual PendingDraft *begin(std::span<const TokenId> text, int32_t most, float least_probability,
                                Sampler &sampler) {
        ready_ = draft(text, most, least_probability, sampler);
        return nullptr;
    }
    virtual Draft finish() { return std::move(ready_); }

    virtual std::string_view name() const = 0;  // "model", "lookup", "self", "mtp", "eagle3" ...

  private:
    Draft ready_;
};

}  // namespace runnel::decode
