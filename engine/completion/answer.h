// One unfinished answer: turns sampled tokens into text until a stop string, an end token or a limit ends it.
// Knows tokens and text, but neither model nor cache.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/completion/stop_matcher.h"
#include "engine/text/tokenizer.h"
#include "engine/text/utf8.h"

namespace runnel::completion {

using text::TokenId;

// The text of tokens, and which of them end generation.
struct Vocabulary {
    std::function<std::string(TokenId)> text;  // bytes in running text
    std::function<bool(TokenId)> is_end;       // of generation
};
Vocabulary vocabulary_of(const text::Tokenizer &tokenizer);  // the tokenizer must outlive it

struct Limits {
    int64_t max_tokens = -1;            // < 0: no limit but the context
    std::vector<std::string> stops{};   // strings that end the text; they are not part of it
    std::vector<TokenId> end_tokens{};  // tokens that end it, besides the vocabulary's own
    std::vector<std::string> bans{};    // texts that the model must not write (decode/bans.h)
    bool ignore_end = false;            // end-of-generation tokens are ordinary tokens
};

enum class FinishReason {
    Stop,       // an end token or a stop string
    Length,     // max_tokens, or a full context
    Deadline,   // the --deadline has passed
    Interrupt,  // a stop was requested by the user
};
std::string_view name(FinishReason reason);  // "stop", "length", "deadline", "interrupt"

class Answer {
  public:
    Answer(Vocabulary vocabulary, Limits options);

    // True when max_tokens tokens were taken.
    bool complete() const { return remaining() == 0; }
    // How many more tokens max_tokens allows.
    int64_t remaining() const;
    // Takes the next token. Returns the text that is certain now: possibly empty, in whole UTF-8 characters,
    // with U+FFFD for invalid bytes. Precondition: !over().
    std::string take(TokenId id);
    // Ends the answer. Returns the text that was held back, followed by `ending`, whose first bytes may
    // complete the last character. Precondition: !over().
    std::string end(FinishReason reason, std::string_view ending = {});

    bool over() const { return over_; }
    FinishReason reason() const { return reason_; }
    // The tokens of the answer, without the token that ended it.
    const std::vector<TokenId> &tokens() const { return tokens_; }
    // The tokens whose text is part of the answer: without those of a stop string.
    std::vector<TokenId> written() const;

  private:
    bool is_end(TokenId id) const;

    Vocabulary vocabulary_;
    Limits options_;
    StopMatcher matcher_;
    text::Utf8Stream characters_;
    std::vector<TokenId> tokens_;
    size_t bytes_ = 0;  // length of the text before invalid bytes became U+FFFD
    FinishReason reason_ = FinishReason::Stop;
    bool over_ = false;
};

}  // namespace runnel::completion
