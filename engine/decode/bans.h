// Banned texts: finds the tokens that would complete one of them, even if the text is split over several
// tokens.
//
// A state is the longest suffix of the answer that begins a banned text (Aho-Corasick). Like a grammar's
// state, it is a number.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/grammar/token_index.h"
#include "engine/text/token.h"

namespace runnel::decode {

using text::TokenId;

// The bytes of all tokens as they appear in an answer.
class TokenTexts {
  public:
    TokenTexts(const std::function<std::string(TokenId)> &text, int32_t rows);
    int32_t rows() const { return static_cast<int32_t>(offsets_.size()) - 1; }
    std::string_view operator[](TokenId id) const {
        const auto at = static_cast<size_t>(id);
        return std::string_view(bytes_).substr(offsets_[at], offsets_[at + 1] - offsets_[at]);
    }

  private:
    std::string bytes_;
    std::vector<size_t> offsets_;  // [rows + 1]
};

class Bans {
  public:
    using State = uint32_t;
    static constexpr State kStart = 0, kMatched = UINT32_MAX;
    static constexpr size_t kMostBytes = 4096;  // of all texts together

    // Throws DecodeError{BadInput} for an empty text and for more than kMostBytes.
    Bans(std::vector<std::string> texts, std::shared_ptr<const TokenTexts> tokens);

    // The state after `bytes`; kMatched if they complete a banned text.
    State advance(State state, std::string_view bytes) const;
    State advance(State state, TokenId token) const {
        return token >= 0 && token < tokens_->rows() ? advance(state, (*tokens_)[token]) : state;
    }
    // The tokens that would lead to kMatched. Valid until the next call.
    const grammar::Bits &forbidden(State state);

    const std::vector<std::string> &texts() const { return texts_; }
    int32_t rows() const { return tokens_->rows(); }

  private:
    std::vector<std::string> texts_;
    std::shared_ptr<const TokenTexts> tokens_;
    std::vector<std::array<State, 256>> next_;
    std::unordered_map<State, grammar::Bits> forbidden_;
};

}  // namespace runnel::decode
