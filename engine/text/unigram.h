// Unigram segmentation (`tokenizer.ggml.model` = "plamo2"): of all ways to write a text as pieces, the one with the
// largest sum of scores (Kudo 2018). A character may also become byte tokens, for a score of -1000. Scores are
// rounded to 1e-4; among equal sums the one that begins with the longest piece is chosen, and so on.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/text/piece_index.h"
#include "engine/text/vocabulary.h"

namespace runnel::text {

class UnigramEncoder {
  public:
    // Throws TokenizerError if the scores or the token of a byte are missing.
    explicit UnigramEncoder(const Vocabulary &vocabulary);

    // O(bytes * length of the pieces that match); 16 bytes of memory per byte of the longest stretch in which
    // pieces overlap.
    void encode(const Vocabulary &vocabulary, std::string_view text, std::vector<TokenId> &output) const;

  private:
    struct Best;
    size_t stretch(std::string_view text) const;
    void encode_stretch(const Vocabulary &vocabulary, std::string_view text, std::vector<Best> &best,
                        std::vector<TokenId> &output) const;

    PieceIndex pieces_;            // of ordinary text
    std::vector<int32_t> scores_;  // by id, in steps of 1e-4
    std::array<TokenId, 256> byte_tokens_;
};

}  // namespace runnel::text
