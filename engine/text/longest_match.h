// Greedy segmentation (`tokenizer.ggml.model` = "rwkv", RWKV's "World" tokenizer): the longest piece that the text
// begins with, then the longest that the rest begins with, and so on. Pieces are byte strings; the vocabulary spells
// them as Python does: \t, \n, \r, \xHH, and a backslash before any other character means that character.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/text/piece_index.h"
#include "engine/text/vocabulary.h"

namespace runnel::text {

class LongestMatchEncoder {
  public:
    // Throws TokenizerError if an escape is incomplete, two pieces are the same bytes, or no piece is a certain byte.
    explicit LongestMatchEncoder(const Vocabulary &vocabulary);
    LongestMatchEncoder(const LongestMatchEncoder &) = delete;
    LongestMatchEncoder &operator=(const LongestMatchEncoder &) = delete;

    // O(bytes * length of the longest piece).
    void encode(std::string_view text, std::vector<TokenId> &output) const;

    // The bytes of a piece of the vocabulary.
    static std::string bytes_of(std::string_view spelled);

  private:
    std::string bytes_;  // of all pieces, one after the other
    PieceIndex pieces_;
};

}  // namespace runnel::text
