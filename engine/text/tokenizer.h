// Text <-> token ids, exactly as the model's own tokenizer does it (checked against llama.cpp's vectors).
//
// Two families: SentencePiece-style (`tokenizer.ggml.model` = "llama": merges by score, byte fallback, "▁" for
// blanks) and byte-level BPE ("gpt2": a pre-tokenizer splits the text, then ranked merges).
// A Tokenizer keeps views into the GGUF mapping: the File must outlive it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/file.h"

namespace runnel::text {

using TokenId = int32_t;

// The file's tokenizer metadata is missing, contradictory or of a kind that is not supported. One line.
class TokenizerError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct EncodeOptions {
    bool add_special = true;     // BOS / EOS as the model's metadata asks for
    bool parse_special = false;  // text that spells a control token becomes that token
};

class Tokenizer {
  public:
    static Tokenizer load(const gguf::File &file);
    ~Tokenizer();
    Tokenizer(Tokenizer &&) noexcept;
    Tokenizer &operator=(Tokenizer &&) noexcept;

    // Any bytes are accepted; bytes that are not UTF-8 are kept (byte tokens) where the vocabulary can spell them.
    std::vector<TokenId> encode(std::string_view text, EncodeOptions options = {}) const;

    // The bytes a token stands for in running text (empty for control tokens unless `special`).
    std::string decode(TokenId id, bool special = false) const;
    // Whole text: also removes the blank that SentencePiece vocabularies put in front.
    std::string decode(std::span<const TokenId> ids, bool special = false) const;

    std::string_view piece(TokenId id) const;    // as the vocabulary spells it
    int32_t size() const;
    bool is_control(TokenId id) const;
    bool is_end_of_generation(TokenId id) const; // eos, eot, eom and their textual relatives
    std::optional<TokenId> bos() const, eos() const, eot() const;
    bool adds_bos() const;
    std::optional<TokenId> find(std::string_view piece) const;
    const std::string &model_name() const;       // "llama/default", "gpt2/qwen2": for messages

  private:
    Tokenizer();
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace runnel::text
