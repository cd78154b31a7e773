// The tokenizer of a synthetic model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "gguf/file.h"
#include "gguf/writer.h"

namespace runnel::testing {

// Either the tokenizer.* metadata of another GGUF file, or a SentencePiece-like vocabulary: <unk>, <s>, </s>,
// the 256 byte tokens, single characters, then pieces that each join two earlier ones, scored in that order.
class Vocabulary {
  public:
    // from: a GGUF file or empty; size: of the synthetic vocabulary. Throws
    // std::invalid_argument, gguf::FileError.
    Vocabulary(const std::filesystem::path &from, int64_t size);

    int64_t size() const { return size_; }
    void add_to(gguf::Writer &writer) const;

  private:
    std::optional<gguf::File> source_;
    int64_t size_;
};

// The pieces of the synthetic vocabulary.
std::vector<std::string> made_up_pieces(int64_t size);

}  // namespace runnel::testing
