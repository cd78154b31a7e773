// Turns a draft model's rows of logits into the tokens of a draft.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/decode/logit_rows.h"
#include "engine/decode/sampler.h"
#include "engine/decode/speculation/draft_source.h"

namespace runnel::decode {

// Draws from the rows with the target's sampler, and thus with the noise of the target's own draw: both draw the
// same token where their distributions agree (sampler.h). Every token has a branch of one token, the second
// choice: what would be drawn if the first were impossible.
class DraftWriter {
  public:
    // With distributions (for the rejection rule), a draft has no branches, and it ends where even the most
    // probable token is less probable than requested: its length must not depend on which token was drawn.
    explicit DraftWriter(bool with_distributions) : with_distributions_(with_distributions) {}

    // Begins a draft of at most `most` tokens after `text`, none below `least_probability`. `sampler` must live
    // until take().
    void begin(std::span<const TokenId> text, int32_t most, float least_probability, Sampler &sampler);
    // Adds the next token, given its row. False when the draft is complete. Throws DecodeError for a row that
    // cannot be sampled from, and BackendError.
    bool add(const LogitRow &row);
    bool add(std::span<const float> row);  // [vocabulary of the draft model]

    TokenId last() const { return draft_.tokens.back(); }
    const std::vector<TokenId> &history() const { return history_; }  // the text and the draft
    Sampler &sampler() const { return *sampler_; }
    Draft take();

  private:
    bool add(const LogitRow *row, std::span<const float> whole);
    bool add_token(const LogitRow *row, std::span<const float> whole);
    std::span<const float> padded(std::span<const float> own);

    Draft draft_;
    int32_t most_ = 0;
    float least_probability_ = 0;
    Sampler *sampler_ = nullptr;
    bool with_distributions_;
    std::vector<TokenId> history_;
    std::vector<float> read_;    // buffer for a full row, when its largest logits are not enough
    std::vector<float> padded_;  // the row, if it is shorter than the sampler's vocabulary
};

}  // namespace runnel::decode
