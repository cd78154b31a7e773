#include "engine/text/sentencepiece.h"

#include <algorithm>
#include <numeric>

#include "engine/text/metadata.h"
#include "engine/text/utf8.h"

namespace runnel::text {

class SentencePieceEncoder::Rules {
  public:
    Rules(const SentencePieceEncoder &encoder, const Vocabulary &vocabulary, std::string_view word,
          Session &session, std::vector<TokenId> &output)
        : encoder_(encoder),
          vocabulary_(vocabulary),
          word_(word),
          symbols_(session.scratch.symbols),
          output_(output),
          first_(output.size()) {}

    size_t start(size_t begin, size_t bytes, std::vector<Symbol> &symbols) {
        begin_ = begin;
        // Symbols are whole characters, so the last one may end up to three bytes later.
        if (symbols.size() < bytes + 4) symbols.resize(bytes + 4);
        size_t at = 0;
        for (uint16_t length = 0; at < bytes; at += length) {
            symbols[at].bytes_before = length;
            length = static_cast<uint16_t>(first_char(word_.substr(begin + at)).bytes);
            symbols[at].bytes = length;
            symbols[at].id = find_piece(at, length);
            for (uint16_t inner = 1; inner < length; ++inner) symbols[at + inner].bytes = 0;
            symbols[at + length].bytes_before = length;
        }
        return at;
    }

    std::optional<Merge> find(size_t left, size_t right) const {
        if (encoder_.merges_) return encoder_.merges_->find(symbols_[left].id, symbols_[right].id);
        const size_t bytes = static_cast<size_t>(symbols_[left].bytes) + symbols_[right].bytes;
        const TokenId id = find_piece(left, bytes);
        if (id == kNoToken) return std::nullopt;
        return Merge{encoder_.rank_[static_cast<size_t>(id)], id};
    }

    std::optional<uint32_t> lowest_rank_across(size_t at, size_t edge) const {
        std::optional<uint32_t> lowest;
        if (encoder_.merges_) {
            const std::string_view behind = word_.substr(begin_ + edge);
            const size_t longest = std::min(behind.size(), vocabulary_.longest_piece(behind[0]));
            for (size_t bytes = 1; bytes <= longest; ++bytes) {
                const auto merge =
                    encoder_.merges_->find(symbols_[at].id, vocabulary_.find(behind.substr(0, bytes)));
                if (merge && (!lowest || merge->rank < *lowest)) lowest = merge->rank;
            }
            return lowest;
        }
        const std::string_view rest = word_.substr(begin_ + at);
        const size_t most = std::min(rest.size(), vocabulary_.longest_piece(rest[0]));
        for (size_t bytes = edge - at + 1; bytes <= most; ++bytes) {
            const TokenId id = find_piece(at, bytes);
            if (id == kNoToken) continue;
            const uint32_t rank = encoder_.rank_[static_cast<size_t>(id)];
            if (!lowest || rank < *lowest) lowest = rank;
        }
        return lowest;
    }

    std::string_view ahead(size_t edge) const {
        return word_.substr(begin_ + edge, vocabulary_.longest_piece());
    }

    void emit(size_t edge) {
        for (size_t at = 0; at < edge; at += symbols_[at].bytes) {
            if (symbols_[at].id != kNoToken) {
                output_.push_back(symbols_[at].id);
            } else {
                encoder_.spell(word_.substr(begin_ + at, symbols_[at].bytes), first_, output_);
            }
        }
    }

  private:
    TokenId find_piece(size_t at, size_t bytes) const {
        const std::string_view text = word_.substr(begin_ + at, bytes);
        if (text.size() > vocabulary_.longest_piece(text[0])) return kNoToken;
        const TokenId id = vocabulary_.find(text);
        return id != kNoToken && vocabulary_.is_text(id) ? id : kNoToken;
    }

    const SentencePieceEncoder &encoder_;
    const Vocabulary &vocabulary_;
    std::string_view word_;
    std::vector<Symbol> &symbols_;
    std::vector<TokenId> &output_;
    size_t first_;      // of this word, in the output
    size_t begin_ = 0;  // of the window
};

SentencePieceEncoder::SentencePieceEncoder(const Vocabulary &vocabulary, TokenId unknown,
                                           std::optional<MergeTable> merges)
    : merges_(std::move(merges)), unknown_(unknown) {
    if (!merges_) {
        if (vocabulary.scores().empty())
            fail("tokenizer.ggml.scores", "is missing, but this kind of tokenizer needs it");
        rank_pieces(vocabulary);
    }
    for (size_t byte = 0; byte < 256; ++byte)
        byte_tokens_[byte] = vocabulary.find_byte(static_cast<uint8_t>(byte));
    for (TokenId id = 0; id < vocabulary.size(); ++id) {
        const std::string_view piece = vocabulary.piece(id);
        for (size_t at = piece.find(kBlankMark, 1); at != piece.npos; at = piece.find(kBlankMark, at + 1))
            joins_blank_.set(static_cast<uint8_t>(piece[at - 1]));
    }
}

void SentencePieceEncoder::rank_pieces(const Vocabulary &vocabulary) {
    const std::vector<float> &scores = vocabulary.scores();
    std::vector<TokenId> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    const auto better = [&](TokenId a, TokenId b) {
        return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
    };
    // Nearly all vocabularies are stored in this order except for a few tokens at the start.
    std::stable_sort(order.begin(), order.end(), better);
    rank_.resize(scores.size());
    uint32_t rank = 0;
    for (size_t i = 0; i < order.size(); ++i) {
        if (i > 0 && better(order[i - 1], order[i])) ++rank;
        rank_[static_cast<size_t>(order[i])] = rank;
    }
}

size_t SentencePieceEncoder::word_end(std::string_view text, size_t begin) const {
    for (size_t at = begin + 1;; ++at) {
        at = text.find(kBlankMark, at);
        if (at == text.npos) return text.size();
        if (!joins_blank_.test(static_cast<uint8_t>(text[at - 1]))) return at;
    }
}

void SentencePieceEncoder::encode(const Vocabulary &vocabulary, std::string_view text, Session &session,
                                  std::vector<TokenId> &output) const {
    for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
        end = word_end(text, begin);
        const std::string_view word = text.substr(begin, end - begin);
        if (session.cache.append(word, output)) continue;
        const size_t first = output.size();
        merge_word(session.scratch, word.size(), Rules(*this, vocabulary, word, session, output),
                   first_window(word.size(), vocabulary.longest_piece()));
        session.cache.remember(word, first, output);
    }
}

void SentencePieceEncoder::spell(std::string_view character, size_t first,
                                 std::vector<TokenId> &output) const {
    const auto byte_token = [&](char c) { return byte_tokens_[static_cast<uint8_t>(c)]; };
    if (std::all_of(character.begin(), character.end(), [&](char c) { return byte_token(c) != kNoToken; })) {
        for (const char c : character) output.push_back(byte_token(c));
    } else if (unknown_ != kNoToken && (output.size() == first || output.back() != unknown_)) {
        output.push_back(unknown_);
    }
}

}  // namespace runnel::text
