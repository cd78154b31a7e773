#include "engine/completion/prompt_scorer.h"

#include <algorithm>

namespace runnel::completion {

void PromptScorer::append_part(decode::ScheduledSequence &sequence) {
    constexpr size_t kMostRows = 64;
    const size_t count =
        std::min({unread_.size(), kMostRows, static_cast<size_t>(sequence.executor().batch_size())});
    sequence.append(std::span(unread_).first(count), static_cast<int32_t>(count));
    unread_.erase(unread_.begin(), unread_.begin() + static_cast<std::ptrdiff_t>(count));
}

bool PromptScorer::score(const decode::ScheduledSequence &sequence,
                         std::vector<decode::TokenLogProbabilities> &scores) {
    const std::vector<TokenId> &tokens = sequence.tokens();
    const decode::LogitRows &rows = sequence.rows();
    for (size_t i = 0; i < rows.size(); ++i) {
        const size_t next = tokens.size() - rows.size() + i + 1;
        if (next == tokens.size() && unread_.empty()) break;
        decode::expect_finite(rows[i].whole());
        scores.push_back(decode::log_probabilities(
            rows[i].whole(), next < tokens.size() ? tokens[next] : unread_.front(), alternatives_));
    }
    return !unread_.empty();
}

}  // namespace runnel::completion
