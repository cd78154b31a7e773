// Byte-level BPE (`tokenizer.ggml.model` = "gpt2"): every byte has a token, a pre-tokenizer splits the text
// into words, and within a word tokens are merged in the order of the file's list.
#pragma once

#include <array>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/merge_table.h"
#include "engine/text/pre_tokenizer.h"
#include "engine/text/vocabulary.h"
#include "engine/text/word_cache.h"

namespace runnel::text {

class BytePairEncoder {
  public:
    // Throws TokenizerError. Bytes without a token become `unknown`. If that is kNoToken, ASCII bytes are
    // dropped, as the models' own tokenizers do (Falcon has no tokens for control characters), and other
    // bytes, which cannot be valid UTF-8 then, become U+FFFD.
    BytePairEncoder(const gguf::File &file, const Vocabulary &vocabulary, const PreTokenizerKind &kind,
                    Conventions conventions, TokenId unknown);

    // The state of one call of Tokenizer::encode; the text fragments must outlive it.
    struct Session {
        explicit Session(size_t text_bytes) : cache(text_bytes) {}
        MergeScratch scratch;
        WordCache cache;
        std::string spelled;
        std::deque<std::string> normalized;  // the keys of the word cache point into these
    };
    void encode(const Vocabulary &vocabulary, std::string_view text, Session &session,
                std::vector<TokenId> &output) const;

    // The bytes of a piece: GPT-2 writes each byte as one printable character. Characters that map to
    // no byte are kept unchanged.
    static std::string bytes_of(std::string_view piece);

  private:
    class Rules;
    void encode_word(const Vocabulary &vocabulary, std::string_view word, Session &session,
                     std::vector<TokenId> &output) const;
    void encode_normalized(const Vocabulary &vocabulary, std::string_view text, Session &session,
                           std::vector<TokenId> &output) const;
    TokenId find_whole(const Vocabulary &vocabulary, std::string_view word, std::string &spelled) const;

    PreTokenizer pre_tokenizer_;
    MergeTable merges_;
    std::array<TokenId, 256> byte_tokens_;
    bool has_unknown_;                  // the vocabulary has an unknown token
    std::vector<TokenId> unspellable_;  // the replacement for a byte without a token
    bool ignores_merges_, normalizes_;
};

}  // namespace runnel::text
