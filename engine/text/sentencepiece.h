// SentencePiece BPE (`tokenizer.ggml.model` = "llama"): characters are merged as long as the result is a
// piece, best score first; "▁" (U+2581) stands for a blank; text without a piece becomes byte tokens.
// "gemma4" is the same with a list of merges instead of scores.
#pragma once

#include <array>
#include <bitset>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/merge.h"
#include "engine/text/merge_table.h"
#include "engine/text/vocabulary.h"
#include "engine/text/word_cache.h"

namespace runnel::text {

inline constexpr std::string_view kBlankMark = "\xE2\x96\x81";  // "▁"

class SentencePieceEncoder {
  public:
    // Throws TokenizerError if there are neither scores nor `merges`. `unknown` (or kNoToken)
    // replaces characters that have neither a piece nor byte tokens; a run of them in a word becomes
    // one token, as in SentencePiece.
    SentencePieceEncoder(const Vocabulary &vocabulary, TokenId unknown,
                         std::optional<MergeTable> merges = std::nullopt);

    // The state of one call of Tokenizer::encode.
    struct Session {
        explicit Session(size_t text_bytes) : cache(text_bytes) {}
        MergeScratch scratch;
        WordCache cache;
    };
    // In `text`, blanks are replaced by kBlankMark; it must outlive the session.
    void encode(const Vocabulary &vocabulary, std::string_view text, Session &session,
                std::vector<TokenId> &output) const;

  private:
    class Rules;
    void rank_pieces(const Vocabulary &vocabulary);
    size_t word_end(std::string_view text, size_t begin) const;
    void spell(std::string_view character, size_t first, std::vector<TokenId> &output) const;

    std::optional<MergeTable> merges_;
    std::vector<uint32_t> rank_;  // per token, used without merges_; equal scores, equal ranks
    std::array<TokenId, 256> byte_tokens_;
    // Bytes that are directly before a blank mark inside some piece. After any other byte a blank mark starts
    // a new word: no piece crosses it, so the parts can be merged separately.
    std::bitset<256> joins_blank_;
    TokenId unknown_;
};

}  // namespace runnel::text
