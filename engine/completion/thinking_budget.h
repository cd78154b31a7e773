// Limits a model's reasoning: after a number of reasoning tokens, the closing mark is forced.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/text/reasoning.h"
#include "engine/text/tokenizer.h"

namespace runnel::completion {

using text::TokenId;

// The result depends on the tokens alone, so drafts and roll-backs need no reset. Copies are independent.
class ThinkingBudget {
  public:
    // The closing mark as tokens; with channels: the end of the analysis and the beginning of the final channel.
    static std::vector<TokenId> closing_tokens(const text::ReasoningStyle &style,
                                               const text::Tokenizer &tokenizer);

    // style.call, if set, ends the reasoning like style.close; styles with channels do not need it. `most`:
    // tokens of reasoning, not counting marks and channel headers. `text`: gives a token's text, marks
    // included. The answer begins after `prompt_tokens` tokens (including those dropped from the history),
    // and inside the reasoning if `begins_inside`.
    ThinkingBudget(text::ReasoningStyle style, bool begins_inside, int64_t most, std::vector<TokenId> closing,
                   std::function<std::string(TokenId)> text, int64_t prompt_tokens);

    // The token of the closing mark that must follow `history`, whose first `dropped` tokens are missing;
    // nullopt: any token may follow. Never splits a UTF-8 character.
    std::optional<TokenId> operator()(std::span<const TokenId> history, int64_t dropped);

  private:
    enum class Phase { Start, Header, Inside, Other, Answer };
    struct State {
        Phase phase;
        int64_t count = 0;      // tokens of reasoning
        size_t closed = 0;      // tokens of the closing mark that were forced
        std::string tail = {};  // the end of the text, as far as a mark may begin in it
    };
    std::optional<TokenId> forced(const State &state) const;
    void advance(State &state, TokenId token) const;
    void read(State &state, std::string_view bytes) const;
    void read_channels(State &state) const;

    text::ReasoningStyle style_;
    int64_t most_;
    std::vector<TokenId> closing_;
    std::function<std::string(TokenId)> text_;
    int64_t begin_;
    std::vector<TokenId> tokens_;  // of the answer, those with a known state
    std::vector<State> states_;    // [tokens + 1]
};

}  // namespace runnel::completion
