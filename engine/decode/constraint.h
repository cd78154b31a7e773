// What tokens may come next in an answer: a grammar, behind the model's reasoning where there is some.
//
// A value: a copy goes its own way, and going back is asking with a shorter text. The states of the grammar
// belong to the answer, so a shifted context, an undo or a draft that was not kept change nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/grammar/masks.h"
#include "engine/text/token.h"

namespace runnel::decode {

using text::TokenId;

// The part of an answer in front of the grammar's text. Anything may stand there but an end of generation.
struct FreeText {
    std::string close;                         // ends it,
    TokenId open = text::kNoToken;             // may begin it; none: the answer begins inside it
    std::function<std::string(TokenId)> text;  // of tokens, marks included
};

class Constraint {
  public:
    explicit Constraint(std::shared_ptr<grammar::Masks> masks, std::optional<FreeText> free = {});

    // The answer's first token will stand behind so many tokens.
    void begin(size_t prompt_tokens);
    // The history is so many tokens shorter from now on.
    void drop(int64_t tokens) { begin_ -= tokens; }

    // `history`: the prompt and the answer so far, whose tokens were all allowed. All of these throw
    // DecodeError{Failed} when the grammar outgrows its bounds or no token is left.
    const grammar::Bits &mask(std::span<const TokenId> history);
    bool allows(std::span<const TokenId> history, TokenId token);
    // How many of these may come, one after the other.
    size_t allowed(std::span<const TokenId> history, std::span<const TokenId> guesses);
    // The bytes that must come, up to `most`; empty where there is a choice.
    std::string forced(std::span<const TokenId> history, size_t most);
    // An answer of these tokens is whole as it stands.
    bool complete(std::span<const TokenId> answer) const;
    // The shortest text that makes it whole; empty where it is, or where none was found.
    std::string ending(std::span<const TokenId> answer) const;

    grammar::Masks &masks() { return *masks_; }

  private:
    struct State {
        grammar::StateId grammar;
        int32_t matched = kBehind;  // bytes of FreeText::close; or
    };
    static constexpr int32_t kBehind = -1;  // there is no free text, or no more of it
    static constexpr int32_t kBefore = -2;  // the first token may open it
    State state_of(std::span<const TokenId> history);
    State advance(State state, TokenId token);
    const grammar::Bits &free_mask(State state);

    std::shared_ptr<grammar::Masks> masks_;
    std::shared_ptr<const FreeText> free_;
    int64_t begin_ = 0;               // of the answer in the history; below 0: so much of it was dropped
    std::vector<TokenId> tokens_;     // of the answer, as far as it was asked for,
    std::vector<State> states_;       // [tokens + 1]
    grammar::Bits anything_, mask_;   // but an end; the last one that was made
    std::vector<TokenId> over_mark_;  // tokens that may go on behind the mark
};

}  // namespace runnel::decode
