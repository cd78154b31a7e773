// Determines which tokens may come next in an answer: those that the grammar allows and that complete no banned
// text. Both the grammar and the banned texts are optional. The grammar applies after the model's reasoning.
//
// Copies are independent. A call may pass a shorter history than the one before it: there is a grammar state
// per token of the answer, so context shifts, undo and rejected drafts need no reset.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/decode/bans.h"
#include "engine/grammar/masks.h"
#include "engine/text/token.h"

namespace runnel::decode {

using text::TokenId;

// Free text (reasoning, or text in front of a tool call) before the grammar's text: all tokens are allowed except
// end tokens.
struct FreeText {
    std::string close;                         // ends the free text
    TokenId open = text::kNoToken;             // may begin it; kNoToken: the answer begins inside it
    std::function<std::string(TokenId)> text;  // returns the text of a token, marks included
    bool may_end = false;                      // the answer may end inside it: ends are allowed, too
};

class Constraint {
  public:
    explicit Constraint(std::shared_ptr<grammar::Masks> masks, std::optional<FreeText> free = {});
    // A constraint without a grammar.
    explicit Constraint(std::shared_ptr<Bans> bans);

    bool has_grammar() const { return masks_ != nullptr; }
    // Call before the answer begins.
    void ban(std::shared_ptr<Bans> bans) { bans_ = std::move(bans); }

    // The answer begins after the first `prompt_tokens` tokens of the history.
    void begin(size_t prompt_tokens);
    // The context shift removed `tokens` tokens from the history, behind the first `keeping` ones.
    void drop(int64_t tokens, size_t keeping = 0) {
        begin_ -= tokens;
        kept_ = static_cast<int64_t>(keeping);
    }

    // `history`: the prompt and the answer so far, whose tokens were all allowed. All of these throw
    // DecodeError{Failed} when the grammar exceeds its limits or allows no token.
    const grammar::Bits &mask(std::span<const TokenId> history);
    // mask(), or null where it would forbid little: in free text, or without a grammar.
    const grammar::Bits *grammar_mask(std::span<const TokenId> history);
    bool allows(std::span<const TokenId> history, TokenId token);
    // How many of the guesses, taken in order, are allowed.
    size_t allowed(std::span<const TokenId> history, std::span<const TokenId> guesses);
    // The bytes that the grammar forces next, at most `most`; empty if there is a choice.
    std::string forced(std::span<const TokenId> history, size_t most);
    // Whether an answer of these tokens satisfies the grammar; true without one.
    bool complete(std::span<const TokenId> answer) const;
    // The shortest text that completes the answer; empty if it is complete, if none was found, or if that text
    // is banned.
    std::string ending(std::span<const TokenId> answer) const;

    grammar::Masks &masks() { return *masks_; }  // precondition: has_grammar()

  private:
    struct State {
        grammar::StateId grammar;
        int32_t matched = kBehind;  // bytes of FreeText::close, or one of:
        Bans::State ban = Bans::kStart;
    };
    static constexpr int32_t kBehind = -1;  // there is no free text, or it has ended
    static constexpr int32_t kBefore = -2;  // the first token may open it
    static bool is_dead(State state) {
        return state.ban == Bans::kMatched || (state.matched < 0 && state.grammar == grammar::kDead);
    }
    State state_of(std::span<const TokenId> history);
    State advance(State state, TokenId token);
    State advance_grammar(State state, TokenId token);
    const grammar::Bits &mask_of(State state);
    const grammar::Bits &free_mask(State state);

    std::shared_ptr<grammar::Masks> masks_;  // null: any text
    std::shared_ptr<Bans> bans_;             // null: none
    std::shared_ptr<const FreeText> free_;
    int64_t begin_ = 0;               // index of the answer in the history; < 0: part of it was dropped
    int64_t kept_ = 0;                // tokens at the front of a shifted history that are not of the answer
    std::vector<TokenId> tokens_;     // the answer's tokens with known states
    std::vector<State> states_;       // [tokens_ + 1]
    grammar::Bits anything_, mask_;   // all tokens except end tokens; the storage of mask()'s result
    std::vector<TokenId> over_mark_;  // tokens that may contain the end of FreeText::close
};

}  // namespace runnel::decode
