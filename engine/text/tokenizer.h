// Text <-> token ids, exactly as the model's own tokenizer does it (checked against llama.cpp's vectors).
//
// Two families: SentencePiece-style (`tokenizer.ggml.model` = "llama": merges by score, byte fallback, "▁"
// for blanks; "gemma4": by a list of merges) and byte-level BPE ("gpt2": a pre-tokenizer splits the text,
// then ranked merges). A Tokenizer keeps views into the GGUF mapping: the File must outlive it. It is
// immutable: any number of threads may use it at once.
//
// Where llama.cpp departs from the models' own tokenizers, this follows the models: bytes that are not UTF-8
// are kept (llama.cpp replaces them), control tokens are never merged together from plain text, of
// overlapping special tokens the leftmost wins, and a BOS that the text spells itself is not added a second
// time.
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
    // BOS / EOS as the model's metadata asks for; not where parse_special already found one at that place, so
    // that a chat template may begin with the BOS text.
    bool add_special = true;
    bool parse_special = false;  // text that spells a control token becomes that token
    // The text follows other text of the same prompt: a SentencePiece vocabulary then puts no blank before
    // it.
    bool continues = false;
};

// A stretch of a prompt. Text that spells a control token becomes that token only where `special`.
struct Segment {
    std::string text;
    bool special = false;
};

class Tokenizer {
  public:
    // Throws TokenizerError for metadata it cannot work with, naming the key.
    static Tokenizer load(const gguf::File &file, Conventions conventions = Conventions::Model);
    ~Tokenizer();
    Tokenizer(Tokenizer &&) noexcept;
    Tokenizer &operator=(Tokenizer &&) noexcept;

    // Any bytes are accepted; bytes that are not UTF-8 are kept (byte tokens) where the vocabulary can spell
    // them. User-defined tokens are found in every text. O(n log n) whatever the text, some 20 MB/s on prose.
    // Throws TokenizerError for a text of 512 MiB or more.
    std::vector<TokenId> encode(std::string_view text, EncodeOptions options = {}) const;

    // The segments' texts, one after the other, as one text: but for control tokens, the result does not
    // depend on where it is cut. options.parse_special does not matter.
    std::vector<TokenId> encode(std::span<const Segment> segments, EncodeOptions options = {}) const;

    // The bytes a token stands for in running text (empty for control tokens unless `special`, for unused
    // ones and for ids outside the vocabulary).
    std::string decode(TokenId id, bool special = false) const;
    // Whole text: also removes the blank that SentencePiece vocabularies put in front.
    std::string decode(std::span<const TokenId> ids, bool special = false) const;

    std::string_view piece(TokenId id) const;  // as the vocabulary spells it; empty for ids outside of it
    int32_t size() const;
    bool is_control(TokenId id) const;            // control and unknown tokens: no text of their own
    bool is_end_of_generation(TokenId id) const;  // eos, eot, eom and their textual relatives
    // Never to be sampled: rows of the model's output that stand for no token (ids outside the vocabulary,
    // padding), and `tokenizer.ggml.suppress_tokens` (Gemma 4: ends of images and sounds).
    bool is_sampleable(TokenId id) const;
    std::optional<TokenId> bos() const;
    std::optional<TokenId> eos() const;
    std::optional<TokenId> eot() const;  // end of turn
    bool adds_bos() const;
    std::optional<TokenId> find(std::string_view piece) const;  // spelled as in the vocabulary
    const std::string &model_name() const;                      // "llama/default", "gpt2/qwen2": for messages
    const std::string &note() const;  // what the user should know about how text is cut; mostly empty

  private:
    Tokenizer();
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace runnel::text
