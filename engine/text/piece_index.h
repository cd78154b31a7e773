// Finds the pieces that a text begins with.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/token.h"

namespace runnel::text {

class PieceIndex {
  public:
    struct Piece {
        std::string_view text;  // not empty; the characters must outlive the index
        TokenId id;
    };

    PieceIndex() = default;
    explicit PieceIndex(std::vector<Piece> pieces) : sorted_(std::move(pieces)) {
        std::ranges::sort(sorted_, {}, &Piece::text);
        for (const Piece &piece : sorted_) ++first_[size_t{byte_at(piece.text, 0)} + 1];
        for (size_t byte = 0; byte < 256; ++byte) first_[byte + 1] += first_[byte];
    }

    const std::vector<Piece> &sorted() const { return sorted_; }  // by their bytes

    // Calls f(id, bytes) for the pieces that the text begins with, the shortest first. The text is not empty.
    template <class F>
    void for_matches(std::string_view text, const F &f) const {
        auto low = sorted_.begin() + first_[byte_at(text, 0)],
             high = sorted_.begin() + first_[size_t{byte_at(text, 0)} + 1];
        for (size_t depth = 1; low != high; ++depth) {
            // All of [low, high) begin with the text's first `depth` bytes; one may consist of them.
            if (low->text.size() == depth) {
                f(low->id, depth);
                ++low;
            }
            if (depth == text.size()) return;
            const auto next = [&](const Piece &piece) { return byte_at(piece.text, depth); };
            const uint8_t byte = byte_at(text, depth);
            low = std::ranges::lower_bound(low, high, byte, {}, next);
            high = std::ranges::upper_bound(low, high, byte, {}, next);
        }
    }

  private:
    static uint8_t byte_at(std::string_view text, size_t at) { return static_cast<uint8_t>(text[at]); }

    std::vector<Piece> sorted_;
    std::array<uint32_t, 257> first_ = {};  // sorted_[first_[b]..first_[b + 1]) begin with byte b
};

}  // namespace runnel::text
