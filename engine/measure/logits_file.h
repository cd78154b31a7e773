// The file format of llama-perplexity's --kl-divergence-base: the log-probabilities of a model over a text.
//
// Little-endian:
//   "_logits_", i32 context, i32 vocab, i32 chunks, i32 tokens[chunks][context],
//   then, for each chunk, for each scored position p = context / 2 .. context - 2, a row:
//     f32 scale, f32 min, u16 code[vocab rounded up to even]
// log p(id | tokens 0..p of the chunk) = scale * code[id] + min. With l the logits and L the log of the sum
// of exp l: min = max(min l, max l - 16) - L, scale = (max l - min l) / 65535, so logits more than 16 below
// the largest count as 16 below.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <vector>

#include "engine/text/token.h"
#include "gguf/output_file.h"

namespace runnel::measure {

using text::TokenId;

// The scored part of a chunk: the second half, without the last position, whose next token is not in the chunk.
inline int32_t first_scored(int32_t context) {
    return context / 2;
}
inline int32_t scored_rows(int32_t context) {
    return context - 1 - first_scored(context);
}

// Compresses one row of logits to the u16s of the file. The first four are scale and min, each an f32.
void compress_row(std::span<const float> logits, std::vector<uint16_t> &row);
// The log-probabilities of a row; `row` may come from a file, and its numbers are not checked.
void expand_row(std::span<const uint16_t> row, std::span<float> log_probabilities);

class LogitsWriter {
  public:
    // Throws gguf::WriteError, as do the other functions. `tokens`: chunks * context of them.
    LogitsWriter(const std::filesystem::path &path, int32_t context, int32_t vocab,
                 std::span<const TokenId> tokens, bool overwrite = false);
    void write(std::span<const float> logits);  // logits of the next scored position
    void commit();                              // only now does the file appear under its name

  private:
    gguf::OutputFile file_;
    std::vector<uint16_t> row_;
};

// Reads an untrusted file: checks its size, counts and token ids when it is opened, and rows when they are read.
class LogitsReader {
  public:
    // Throws DecodeError{BadInput} if the file has another format, is truncated, or
    // has another vocabulary size.
    LogitsReader(const std::filesystem::path &path, int32_t vocab);

    int32_t context() const { return context_; }
    int32_t chunks() const { return chunks_; }
    std::span<const TokenId> tokens() const { return tokens_; }  // chunks() * context()

    // The log-probabilities of the next scored position, all at most 0 (up to rounding). Valid until the next
    // call. Throws DecodeError{BadInput} for an invalid row.
    std::span<const float> read();

  private:
    [[noreturn]] void fail(const std::string &problem) const;
    void check_size(uint64_t bytes) const;

    std::filesystem::path path_;
    std::ifstream file_;
    int32_t context_ = 0, vocab_ = 0, chunks_ = 0;
    std::vector<TokenId> tokens_;
    std::vector<uint16_t> row_;
    std::vector<float> log_probabilities_;
};

}  // namespace runnel::measure
