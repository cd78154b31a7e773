// Text <-> token ids, exactly as the model's own tokenizer does it (checked against llama.cpp's vectors).
//
// Four families: SentencePiece-style (`tokenizer.ggml.model` = "llama": merges by score, byte fallback, "▁"
// for blanks; "gemma4": by a list of merges), byte-level BPE ("gpt2": a pre-tokenizer splits the text, then
// ranked merges), unigram segmentation ("plamo2": the pieces with the largest sum of scores) and greedy segmentation
// ("rwkv": always the longest piece). A Tokenizer keeps views into the GGUF mapping: the File must outlive it. It is
// immutable and thread-safe.
//
// Where llama.cpp differs from the models' own tokenizers, this follows the models: bytes that are not
// valid UTF-8 are kept (llama.cpp replaces them), control tokens are never merged from plain text, the
// leftmost of overlapping special tokens wins, and a BOS is not added to a text that already starts with
// it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/pre_tokenizer.h"
#include "engine/text/token.h"
#include "gguf/file.h"

namespace runnel::text {

struct EncodeOptions {
    // Adds BOS / EOS as the model's metadata requires, unless parse_special found it there already, so that a
    // chat template may begin with the BOS text.
    bool add_special = true;
    bool parse_special = false;  // text that spells a control token becomes that token
    // The text follows other text of the same prompt: a SentencePiece vocabulary then adds no leading
    // blank.
    bool continues = false;
};

// A part of a prompt. Text that spells a control token becomes that token only if `special`.
struct Segment {
    std::string text;
    bool special = false;
};

class Tokenizer {
  public:
    // `file` must outlive it. Throws TokenizerError for metadata that it cannot use, naming the key.
    static Tokenizer load(const gguf::File &file, Conventions conventions = Conventions::Model);
    ~Tokenizer();
    Tokenizer(Tokenizer &&) noexcept;
    Tokenizer &operator=(Tokenizer &&) noexcept;

    // Accepts any bytes; bytes that are not valid UTF-8 are kept (byte tokens) if the vocabulary can spell
    // them. User-defined tokens are found in every text. O(n log n) for any text, about 20 MB/s on prose.
    // Throws TokenizerError for a text of 512 MiB or more.
    std::vector<TokenId> encode(std::string_view text, EncodeOptions options = {}) const;

    // Encodes the concatenated texts of the segments: except for control tokens, the result does not depend
    // on the segment boundaries. options.parse_special has no effect.
    std::vector<TokenId> encode(std::span<const Segment> segments, EncodeOptions options = {}) const;

    // The bytes of a token in running text (empty for control tokens unless `special`, for unused tokens and
    // for ids outside the vocabulary).
    std::string decode(TokenId id, bool special = false) const;
    // Decodes a whole text: also removes the leading blank that SentencePiece vocabularies add.
    std::string decode(std::span<const TokenId> ids, bool special = false) const;

    std::string_view piece(TokenId id) const;  // as in the vocabulary; empty for ids outside of it
    int32_t size() const;
    bool is_control(TokenId id) const;            // control and unknown tokens: no text of their own
    bool is_end_of_generation(TokenId id) const;  // eos, eot, eom and textual variants
    // False for tokens that must never be sampled: rows of the model's output without a token (ids outside
    // the vocabulary, padding), and `tokenizer.ggml.suppress_tokens` (Gemma 4: ends of images and sounds).
    bool is_sampleable(TokenId id) const;
    std::optional<TokenId> bos() const;
    std::optional<TokenId> eos() const;
    std::optional<TokenId> eot() const;  // end of turn
    bool adds_bos() const;
    std::optional<TokenId> find(std::string_view piece) const;  // as spelled in the vocabulary
    const std::string &model_name() const;  // "llama/default", "gpt2/qwen2"; used in messages
    const std::string &note() const;        // a remark for the user about splitting; usually empty

  private:
    Tokenizer();
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace runnel::text
