#include "engine/text/sentencepiece.h"

#include <algorithm>
#include <numeric>

#include "engine/text/metadata.h"
#include "engine/text/utf8.h"

namespace runnel::text {

SentencePieceEncoder::SentencePieceEncoder(const Vocabulary &vocabulary, TokenId unknown)
    : unknown_(unknown) {
    if (vocabulary.scores().empty())
        fail("tokenizer.ggml.scores", "is missing, and this kind of tokenizer needs it");
    rank_pieces(vocabulary);
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
    // Nearly all vocabularies are stored in this order but for a few tokens at the start.
    std::stable_sort(order.begin(), order.end(), better);
    rank_.resize(scores.size());
    for (size_t i = 0; i < order.size(); ++i) {
        if (i > 0 && better(order[i - 1], order[i])) ++ranks_;
        rank_[static_cast<size_t>(order[i])] = static_cast<uint32_t>(ranks_);
    }
    ++ranks_;
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
        encode_word(vocabulary, word, session, output);
        session.cache.remember(word, first, output);
    }
}

void SentencePieceEncoder::encode_word(const Vocabulary &vocabulary, std::string_view word, Session &session,
                                       std::vector<TokenId> &output) const {
    const auto bytes = static_cast<uint32_t>(word.size());
    auto &symbols = session.scratch.symbols;
    if (symbols.size() <= bytes) symbols.resize(word.size() + 1);
    const auto text_token = [&](std::string_view text) {
        if (text.size() > vocabulary.longest_piece()) return kNoToken;
        const TokenId id = vocabulary.find(text);
        return id != kNoToken && vocabulary.is_text(id) ? id : kNoToken;
    };
    for (uint32_t at = 0, length = 0; at < bytes; at += length) {
        const auto before = static_cast<uint16_t>(length);
        length = first_char(word.substr(at)).bytes;
        symbols[at] = {static_cast<uint16_t>(length), before, text_token(word.substr(at, length))};
        for (uint32_t inner = 1; inner < length; ++inner) symbols[at + inner].bytes = 0;
    }
    merge_symbols(session.scratch, bytes, [&](uint32_t left, uint32_t right) -> std::optional<Merge> {
        const TokenId id = text_token(word.substr(left, symbols[left].bytes + symbols[right].bytes));
        if (id == kNoToken) return std::nullopt;
        return Merge{rank_[static_cast<size_t>(id)], id};
    });
    const size_t first = output.size();
    for (uint32_t at = 0; at < bytes; at += symbols[at].bytes) {
        if (symbols[at].id != kNoToken) {
            output.push_back(symbols[at].id);
        } else {
            spell(word.substr(at, symbols[at].bytes), first, output);
        }
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
