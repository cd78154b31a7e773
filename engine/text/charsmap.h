// How a SentencePiece model normalizes text (`tokenizer.ggml.precompiled_charsmap`): the longest run of bytes
// that its table knows becomes another, from left to right (full-width letters, ligatures, other kinds of
// blanks, with the usual table of nmt_nfkc). The value is SentencePiece's own: the size of a trie in bytes
// (u32, little-endian), the trie, and replacements that end in a zero byte. The trie is a double array of u32
// units (darts-clone): at a node whose unit's offset is o, byte c leads to unit node ^ o ^ c if that unit's
// label is c; a node that ends a key has its value, the place of a replacement, at label 0.
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
    // Nothing when the file has none, or an empty one. Throws TokenizerError for a value of another form.
    static std::optional<Charsmap> load(const gguf::File &file);

    // Bytes that no rule speaks of stay as they are, UTF-8 or not. Throws TokenizerError when the result has
    // more than `limit` bytes.
    std::string normalize(std::string_view text, size_t limit) const;

  private:
    struct Match {
        size_t bytes = 0;  // of the text; 0: no rule fits
        std::string_view replacement;
    };
    Match longest_match(std::string_view text) const;

    std::vector<uint32_t> units_;
    std::string replacements_;  // ends in a zero byte
};

}  // namespace runnel::text
