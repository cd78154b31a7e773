// The texts of a vocabulary, so that a machine can try all tokens at once.
//
// Tokens are sorted by their first two bytes. The tokens with the same two bytes form a trie, which is built when
// first needed, so that the first mask does not wait for all tries. Plain tokens (whole characters that stand for
// themselves in a JSON string) are also listed by their number of characters: in a string they are most of
// the vocabulary, and need not be tried.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tokenizer.h"

namespace runnel::grammar {

using text::TokenId;

// One bit for each row of the logits.
using Bits = std::vector<uint64_t>;
inline void set_bit(Bits &bits, TokenId token) {
    bits[static_cast<size_t>(token) / 64] |= uint64_t{1} << static_cast<size_t>(token) % 64;
}
inline void clear_bit(Bits &bits, TokenId token) {
    bits[static_cast<size_t>(token) / 64] &= ~(uint64_t{1} << static_cast<size_t>(token) % 64);
}
inline bool has_bit(const Bits &bits, TokenId token) {
    return bits[static_cast<size_t>(token) / 64] >> static_cast<size_t>(token) % 64 & 1;
}

// Not thread-safe: tries are made when needed.
class TokenIndex {
  public:
    static constexpr uint8_t kMostBelow = 255;
    // A trie in depth-first order, without its first two bytes.
    struct Node {
        uint32_t end;          // the end of the node's descendants
        uint32_t first, last;  // its tokens, in `order`
        uint16_t depth;        // 0 for children of the second byte
        uint8_t byte;
        uint8_t below;  // how many bytes longer its longest descendant is; kMostBelow: that many or more
    };
    struct Bucket {
        uint32_t begin = 0, end = 0;  // in `order`; tokens of two bytes come first
        uint32_t whole = 0;           // the end of the tokens of two bytes
        uint32_t longest = 0;         // most bytes of a token after the second
        std::vector<Node> nodes = {};
        bool built = false;
    };
    struct Trie {
        std::vector<TokenId> order;
        std::array<uint32_t, 257> begin{};    // in `order`, by the first byte
        std::array<uint32_t, 256> single{};   // the end of the tokens of one byte
        std::array<uint32_t, 256> longest{};  // most bytes of a token after the first
        std::array<std::vector<std::pair<uint8_t, uint32_t>>, 256> second;  // second byte, bucket
        std::vector<Bucket> buckets;
    };

    // `rows`: how many logits the model has. Leaves out tokens without text, end tokens, and tokens that must
    // never be sampled.
    TokenIndex(const text::Tokenizer &tokenizer, int32_t rows);
    // For texts given directly, by id; empty: no text.
    explicit TokenIndex(const std::vector<std::string> &texts, std::vector<TokenId> ends = {});

    int32_t rows() const { return rows_; }
    std::string_view text(TokenId token) const {
        return {bytes_.data() + offsets_[static_cast<size_t>(token)],
                offsets_[static_cast<size_t>(token) + 1] - offsets_[static_cast<size_t>(token)]};
    }
    const std::vector<TokenId> &ends() const { return ends_; }  // of generation
    bool is_end(TokenId token) const;
    bool is_sampleable(TokenId token) const { return has_bit(sampleable_, token); }

    Trie &plain() { return plain_trie_; }
    Trie &not_plain() { return not_plain_; }
    // Makes the nodes, unless they exist.
    void build(Trie &trie, Bucket &bucket);

    // Plain tokens of at most this many characters.
    const Bits &plain(uint32_t characters);
    uint32_t longest_plain() const { return static_cast<uint32_t>(plain_by_length_.size()) - 1; }

  private:
    void index();
    Trie sorted(const std::vector<TokenId> &tokens) const;

    int32_t rows_;
    std::string bytes_;
    std::vector<uint32_t> offsets_;  // [rows + 1]
    std::vector<TokenId> ends_;      // ascending
    Bits sampleable_;
    Trie plain_trie_, not_plain_;
    std::vector<std::vector<TokenId>> plain_by_length_;  // [characters]
    std::map<uint32_t, Bits> plain_;
};

}  // namespace runnel::grammar
