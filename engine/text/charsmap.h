// The text normalization of a SentencePiece model (`tokenizer.ggml.precompiled_charsmap`): from left to right,
// the longest run of bytes that is a key of its table is replaced (the usual table, nmt_nfkc, replaces
// full-width letters, ligatures and other kinds of blanks). The value is in SentencePiece's format: the size of
// a trie in bytes (u32, little-endian), the trie, and replacements that end in a zero byte. The trie is a
// double array of u32 units (darts-clone): from a node whose unit has offset o, byte c leads to unit node ^ o ^
// c if that unit's label is c. A node that ends a key has its value, the offset of a replacement, at label 0.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/file.h"

namespace runnel::text {

class Charsmap {
  public:
    // nullopt if the file has none, or an empty one. Throws TokenizerError for a malformed value.
    static std::optional<Charsmap> load(const gguf::File &file);

    // Bytes that match no key are kept, valid UTF-8 or not. Throws TokenizerError if the
    // result exceeds `limit` bytes.
    std::string normalize(std::string_view text, size_t limit) const;

  private:
    struct Match {
        size_t bytes = 0;  // length of the matched text; 0: no match
        std::string_view replacement;
    };
    Match longest_match(std::string_view text) const;

    std::vector<uint32_t> units_;
    std::string replacements_;  // ends in a zero byte
};

}  // namespace runnel::text
