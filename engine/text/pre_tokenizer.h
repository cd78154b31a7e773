// Cutting text into words before byte-level BPE: merges never cross a word's edge.
//
// Each pre-tokenizer is a list of patterns, applied one after the other: every pattern cuts each piece that
// the ones before it left into its matches and what lies between them (the "Isolated" splitting of Hugging
// Face's tokenizer.json, where the patterns come from). They are run by PCRE2 with JIT, 6 ms for a megabyte
// of prose.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/token.h"

namespace runnel::text {

// Whose rules a text is cut by, where they differ.
enum class Conventions : uint8_t {
    Model,  // the model's own tokenizer's
    Llama,  // llama.cpp's: to compare with it
};

// What a row of the table rests on. tests/data/pre_tokenizers.json holds the words that Hugging Face's
// `tokenizers` makes with each row's definition (scripts/record-tokenizers); the tests compare with them.
enum class Evidence : uint8_t {
    Vectors,    // and recorded ids of a model's own tokenizer agree (../shared/data/vocab)
    Published,  // the definition is the model's: its tokenizer.json, its code, or a copy that quotes it
    Peer,       // the definition is llama.cpp's (2026); the model's own was not at hand
};

// What `tokenizer.ggml.pre` stands for.
struct PreTokenizerKind {
    std::vector<std::string_view> names;
    std::vector<std::string_view> patterns;        // PCRE2 syntax, UTF-8
    std::vector<std::string_view> llama_patterns;  // with Conventions::Llama, where they differ; else empty
    Evidence evidence = Evidence::Peer;
    bool normalizes = false;      // text is brought to NFC first (llama.cpp does not)
    bool ignores_merges = false;  // a word that is in the vocabulary is that token, whatever the merges say
    bool adds_bos = false;        // if the file does not say (tokenizer.ggml.add_bos_token)
    bool has_bos = true;          // false: bos_token_id in the file is to be ignored
};

// The whole table.
std::span<const PreTokenizerKind> pre_tokenizer_kinds();
// Null when the name is unknown.
const PreTokenizerKind *find_pre_tokenizer(std::string_view name);
// The known name to use for an unknown one: that with the longest beginning in common, if it says anything.
std::string_view nearest_pre_tokenizer(std::string_view name);
// "default, gpt-2, ...": for messages.
std::string pre_tokenizer_names();

class PreTokenizer {
  public:
    explicit PreTokenizer(const PreTokenizerKind &kind, Conventions conventions = Conventions::Model);
    ~PreTokenizer();
    PreTokenizer(PreTokenizer &&) noexcept;
    PreTokenizer &operator=(PreTokenizer &&) noexcept;

    // The end offsets of the words of `text`, ascending; the last is text.size(). Bytes that are not UTF-8
    // count as characters that are neither letter, number, punctuation, symbol nor space. text.size() < 2^32.
    // Throws TokenizerError when PCRE2 gives up (memory). Does not normalize.
    std::vector<uint32_t> split(std::string_view text) const;

  private:
    class Pattern;
    std::vector<Pattern> patterns_;
};

}  // namespace runnel::text
