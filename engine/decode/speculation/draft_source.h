// Where guesses of the next tokens come from: a smaller model, the text itself, a part of the model.
//
// A source is free to guess what it likes: the model that it guesses for checks every token (speculator.h),
// so a bad guess costs time and never changes a text.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/decode/sampler.h"

namespace runnel::decode {

// Another guess in place of a part of a draft.
struct Branch {
    size_t shared = 0;            // tokens of the draft that it follows; fewer than the draft has
    std::vector<TokenId> tokens;  // behind those; the first is another than the draft's
    // The source's own probability of each token, given that those before it are right (for the first: given
    // that the draft's token is wrong).
    std::vector<float> probabilities;
};

// What a source guesses.
struct Draft {
    std::vector<TokenId> tokens;
    // Of the same length: the source's own probability of each token, 1 when it has none.
    std::vector<float> probabilities;
    // What each token was drawn from; only the rejection rule asks. Empty: all mass is on the token itself.
    std::vector<Distribution> distributions;
    // What may come instead: second choices, other places of the text. Under the rejection rule there is
    // none.
    std::vector<Branch> branches = {};
};

class ModelDraft;

// One per sequence.
class DraftSource {
  public:
    virtual ~DraftSource() = default;

    // What may follow `text`: all tokens of the sequence, the newest last (sampled, and not yet computed by
    // the model guessed for). At most `most` tokens, none of a probability below `least_probability` but for
    // the sources that know none; it may be none at all. `sampler`: the chain of the model guessed for, whose
    // noise and history rules the source shares. The texts of successive calls mostly extend each other;
    // after an undo, a context shift or rejected drafts they do not. Throws DecodeError and what its backend
    // throws.
    virtual Draft draft(std::span<const TokenId> text, int32_t most, float least_probability,
                        Sampler &sampler) = 0;

    // The same in two parts, so that the drafts of several sequences can be made in common passes. Where
    // begin() returns a model's draft, it is to be driven by draft_together() (model_draft.h) before
    // finish(); `sampler` is kept until then.
    virtual ModelDraft *begin(std::span<const TokenId> text, int32_t most, float least_probability,
                              Sampler &sampler) {
        ready_ = draft(text, most, least_probability, sampler);
        return nullptr;
    }
    virtual Draft finish() { return std::move(ready_); }

    virtual std::string_view name() const = 0;  // "model", "lookup", "self"

  private:
    Draft ready_;
};

}  // namespace runnel::decode
