// Splits text into words before byte-level BPE: merges never cross a word boundary.
//
// Each pre-tokenizer is a list of patterns, applied one after the other: every pattern splits each piece
// left by the previous ones into its matches and the text between them (the "Isolated" splitting of Hugging
// Face's tokenizer.json, the source of the patterns). PCRE2 runs them with JIT, 6 ms for a megabyte of
// prose.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/token.h"

namespace runnel::text {

// Whose rules to follow if they differ.
enum class Conventions : uint8_t {
    Model,  // the model's own tokenizer
    Llama,  // llama.cpp, for comparisons
};

// The evidence for a row of the table. tests/data/pre_tokenizers.json holds the words that Hugging Face's
// `tokenizers` makes with each row's definition (scripts/record-tokenizers); the tests compare with them.
enum class Evidence : uint8_t {
    Vectors,    // recorded ids of a model's own tokenizer agree, too (../shared/data/vocab)
    Published,  // the definition is the model's: its tokenizer.json, its code, or a copy that quotes it
    Peer,       // the definition is llama.cpp's (2026); the model's own was not available
};

// The meaning of a value of `tokenizer.ggml.pre`.
struct PreTokenizerKind {
    std::vector<std::string_view> names;
    std::vector<std::string_view> patterns;        // PCRE2 syntax, UTF-8
    std::vector<std::string_view> llama_patterns;  // for Conventions::Llama, if they differ; else empty
    Evidence evidence = Evidence::Peer;
    bool normalizes = false;      // text is normalized to NFC first (llama.cpp does not)
    bool ignores_merges = false;  // a word in the vocabulary is one token, whatever the merges say
    bool adds_bos = false;        // the default if the file has no tokenizer.ggml.add_bos_token
    bool has_bos = true;          // false: the file's bos_token_id is ignored
};

// The whole table.
std::span<const PreTokenizerKind> pre_tokenizer_kinds();
// Null when the name is unknown.
const PreTokenizerKind *find_pre_tokenizer(std::string_view name);
// The known name to use for an unknown one: the longest common prefix wins; "dbrx" if all are short.
std::string_view nearest_pre_tokenizer(std::string_view name);
// "default, gpt-2, ...", for messages.
std::string pre_tokenizer_names();

class PreTokenizer {
  public:
    explicit PreTokenizer(const PreTokenizerKind &kind, Conventions conventions = Conventions::Model);
    ~PreTokenizer();
    PreTokenizer(PreTokenizer &&) noexcept;
    PreTokenizer &operator=(PreTokenizer &&) noexcept;

    // The end offsets of the words of `text`, ascending; the last is text.size(). Bytes that are not valid
    // UTF-8 count as characters that are neither letter, number, punctuation, symbol nor space. text.size() <
    // 2^32. Throws TokenizerError if PCRE2 runs out of memory. Does not normalize.
    std::vector<uint32_t> split(std::string_view text) const;

  private:
    class Pattern;
    std::vector<Pattern> patterns_;
};

}  // namespace runnel::text
