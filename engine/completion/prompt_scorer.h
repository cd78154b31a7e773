// Log-probabilities of a prompt's own tokens (Request::prompt_logprobs).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/completion/answer.h"
#include "engine/decode/log_probabilities.h"
#include "engine/decode/scheduled_sequence.h"

namespace runnel::completion {

// Appends a prompt to a sequence in parts, because all logits of a part are in memory at once.
class PromptScorer {
  public:
    PromptScorer(std::vector<TokenId> prompt, int32_t alternatives)
        : unread_(std::move(prompt)), alternatives_(alternatives) {}

    // Appends the next part, with a row for each token.
    void append_part(decode::ScheduledSequence &sequence);
    // Call when a part is computed: adds the log-probabilities of the tokens after its rows to `scores`.
    // True if the prompt has another part. Throws DecodeError for logits that are not finite.
    bool score(const decode::ScheduledSequence &sequence, std::vector<decode::TokenLogProbabilities> &scores);

  private:
    std::vector<TokenId> unread_;  // not in the sequence yet
    int32_t alternatives_;
};

}  // namespace runnel::completion
