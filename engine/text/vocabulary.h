// The pieces of a vocabulary: text, type and score of every id, and the id of a text.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/text/hash.h"
#include "engine/text/token.h"
#include "gguf/file.h"

namespace runnel::text {

inline constexpr size_t kMaxPieceBytes = 32767;

// Holds views into the GGUF mapping: the File must outlive it.
class Vocabulary {
  public:
    // Reads tokenizer.ggml.{tokens,token_type,scores}. Pieces must be unique, except empty ones
    // (which are never found), and below 32 KiB; types default to Normal, scores are empty if
    // absent. Throws TokenizerError.
    static Vocabulary load(const gguf::File &file);

    TokenId size() const { return static_cast<TokenId>(pieces_.size()); }
    bool contains(TokenId id) const { return id >= 0 && id < size(); }

    std::string_view piece(TokenId id) const { return pieces_[static_cast<size_t>(id)]; }
    TokenType type(TokenId id) const { return types_[static_cast<size_t>(id)]; }
    void set_type(TokenId id, TokenType type) { types_[static_cast<size_t>(id)] = type; }
    const std::vector<float> &scores() const { return scores_; }  // [size], or empty
    size_t longest_piece() const { return longest_piece_; }       // bytes
    // The longest of the pieces that start with this byte.
    size_t longest_piece(char first) const { return longest_from_[static_cast<uint8_t>(first)]; }

    // kNoToken if there is no such piece.
    TokenId find(std::string_view piece) const { return find(piece, hash_bytes(piece)); }
    TokenId find(std::string_view piece, uint64_t hash) const;
    // Prefetches the data of find(piece, hash): for many lookups in a row.
    void prefetch(uint64_t hash) const { __builtin_prefetch(&slots_[hash & mask_]); }

    // Normal and user-defined tokens: those that ordinary text can produce.
    bool is_text(TokenId id) const {
        return type(id) == TokenType::Normal || type(id) == TokenType::UserDefined;
    }

    // The token for one byte: "<0x41>", or the byte itself as a piece; kNoToken if there is neither.
    TokenId find_byte(uint8_t byte) const;
    // The byte of a token of type Byte.
    std::optional<uint8_t> byte_value(TokenId id) const;

  private:
    struct Slot {
        uint32_t tag = 0;  // upper half of the hash
        TokenId id = kNoToken;
    };
    void index_pieces();

    std::vector<std::string_view> pieces_;
    std::vector<TokenType> types_;
    std::vector<float> scores_;
    std::vector<Slot> slots_;  // open addressing, at most half full
    uint64_t mask_ = 0;
    size_t longest_piece_ = 0;
    std::array<uint16_t, 256> longest_from_{};  // by first byte
};

}  // namespace runnel::text
