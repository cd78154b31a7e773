// SentencePiece BPE (`tokenizer.ggml.model` = "llama"): characters are merged as long as the result is a
// piece, best score first; "▁" (U+2581) stands for a blank; what has no piece is spelled in byte tokens.
// "gemma4" is the same with a list of merges in place of scores.
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
    // Throws TokenizerError when there are neither scores nor `merges`. `unknown` (kNoToken for none) stands
    // for text that has neither a piece nor byte tokens; a run of such characters in a word becomes one
    // token, as in SentencePiece.
    SentencePieceEncoder(const Vocabulary &vocabulary, TokenId unknown,
                         std::optional<MergeTable> merges = std::nullopt);

    // What one call of Tokenizer::encode needs.
    struct Session {
        explicit Session(size_t text_bytes) : cache(text_bytes) {}
        MergeScratch scratch;
        WordCache cache;
    };
    // `text` has its blanks replaced by kBlankMark and must outlive the session.
    void encode(const Vocabulary &vocabulary, std::string_view text, Session &session,
                std::vector<TokenId> &output) const;

  private:
    class Rules;
    void rank_pieces(const Vocabulary &vocabulary);
    size_t word_end(std::string_view text, size_t begin) const;
    void spell(std::string_view character, size_t first, std::vector<TokenId> &output) const;

    std::optional<MergeTable> merges_;
    std::vector<uint32_t> rank_;  // of each token, without merges_; equal scores, equal ranks
    std::array<TokenId, 256> byte_tokens_;
    // Bytes that stand right before a blank mark inside some piece. After any other byte a blank mark starts
    // a new word: no piece reaches across, so the parts can be merged on their own.
    std::bitset<256> joins_blank_;
    TokenId unknown_;
};

}  // namespace runnel::text
