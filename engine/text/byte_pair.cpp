#include "engine/text/byte_pair.h"

#include "engine/text/normalize.h"
#include "engine/text/utf8.h"

namespace runnel::text {
namespace {

// GPT-2's bytes_to_unicode: printable Latin-1 maps to itself, the other 68 bytes, in ascending order, to
// U+0100 and the code points after it.
constexpr bool is_itself(uint32_t byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

struct ByteAlphabet {
    std::array<uint16_t, 256> character{};  // byte -> code point, all below U+0800
    std::array<int16_t, 0x144> byte{};      // code point -> byte, -1 for none
};

constexpr ByteAlphabet make_alphabet() {
    ByteAlphabet alphabet;
    alphabet.byte.fill(-1);
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
        const uint32_t character = is_itself(byte) ? byte : next++;
        alphabet.character[byte] = static_cast<uint16_t>(character);
        alphabet.byte[character] = static_cast<int16_t>(byte);
    }
    return alphabet;
}
constexpr ByteAlphabet kAlphabet = make_alphabet();

void append_character(std::string &text, uint32_t code_point) {
    if (code_point < 0x80) {
        text += static_cast<char>(code_point);
    } else {
        text += static_cast<char>(0xC0 | code_point >> 6);
        text += static_cast<char>(0x80 | (code_point & 0x3F));
    }
}

}  // namespace

class BytePairEncoder::Rules {
  public:
    Rules(const BytePairEncoder &encoder, const Vocabulary &vocabulary, std::string_view word,
          Session &session, std::vector<TokenId> &output)
        : encoder_(encoder),
          vocabulary_(vocabulary),
          word_(word),
          symbols_(session.scratch.symbols),
          spelled_(session.spelled),
          output_(output) {}

    size_t start(size_t begin, size_t bytes, std::vector<Symbol> &symbols) {
        begin_ = begin;
        if (symbols.size() <= bytes) symbols.resize(bytes + 1);
        for (size_t i = 0; i < bytes; ++i)
            symbols[i] = {1, i > 0, encoder_.byte_tokens_[static_cast<uint8_t>(word_[begin + i])]};
        symbols[bytes].bytes_before = 1;
        return bytes;
    }

    std::optional<Merge> find(size_t left, size_t right) const {
        return encoder_.merges_.find(symbols_[left].id, symbols_[right].id);
    }

    std::optional<uint32_t> lowest_rank_across(size_t at, size_t edge) {
        std::optional<uint32_t> lowest;
        spelled_.clear();
        for (const char c : word_.substr(begin_ + edge, vocabulary_.longest_piece())) {
            append_character(spelled_, kAlphabet.character[static_cast<uint8_t>(c)]);
            if (spelled_.size() > vocabulary_.longest_piece(spelled_[0])) break;
            const auto merge = encoder_.merges_.find(symbols_[at].id, vocabulary_.find(spelled_));
            if (merge && (!lowest || merge->rank < *lowest)) lowest = merge->rank;
        }
        return lowest;
    }

    std::string_view ahead(size_t edge) const {
        return word_.substr(begin_ + edge, vocabulary_.longest_piece());
    }

    void emit(size_t edge) {
        for (size_t at = 0; at < edge; at += symbols_[at].bytes) {
            const auto byte = static_cast<uint8_t>(word_[begin_ + at]);
            if (symbols_[at].id != kNoToken) {
                output_.push_back(symbols_[at].id);
            } else if (encoder_.has_unknown_ || byte >= 0x80) {
                output_.insert(output_.end(), encoder_.unspellable_.begin(), encoder_.unspellable_.end());
            }
        }
    }

  private:
    const BytePairEncoder &encoder_;
    const Vocabulary &vocabulary_;
    std::string_view word_;
    std::vector<Symbol> &symbols_;
    std::string &spelled_;
    std::vector<TokenId> &output_;
    size_t begin_ = 0;  // of the window
};

BytePairEncoder::BytePairEncoder(const gguf::File &file, const Vocabulary &vocabulary,
                                 const PreTokenizerKind &kind, Conventions conventions, TokenId unknown)
    : pre_tokenizer_(kind, conventions),
      merges_(MergeTable::load(file, vocabulary)),
      has_unknown_(unknown != kNoToken),
      ignores_merges_(kind.ignores_merges),
      normalizes_(kind.normalizes && conventions == Conventions::Model) {
    for (size_t byte = 0; byte < 256; ++byte) {
        std::string spelled;
        append_character(spelled, kAlphabet.character[byte]);
        const TokenId id = vocabulary.find(spelled);
        // DeepSeek Coder lacks the bytes that never occur in UTF-8, and its user-defined
        // "\u00F5" is not byte 0xF5.
        const bool is_byte = id != kNoToken && vocabulary.type(id) == TokenType::Normal;
        byte_tokens_[byte] = is_byte ? id : kNoToken;
    }
    if (unknown != kNoToken) {
        unspellable_ = {unknown};
    } else {
        Session session(0);
        std::vector<TokenId> replacement;
        encode_word(vocabulary, "\xEF\xBF\xBD", session, replacement);
        unspellable_ = std::move(replacement);
    }
}

std::string BytePairEncoder::bytes_of(std::string_view piece) {
    std::string bytes;
    while (!piece.empty()) {
        const Utf8Char c = first_char(piece);
        const int byte = c.valid && c.code_point < kAlphabet.byte.size() ? kAlphabet.byte[c.code_point] : -1;
        if (byte >= 0) {
            bytes += static_cast<char>(byte);
        } else {
            bytes += piece.substr(0, c.bytes);
        }
        piece.remove_prefix(c.bytes);
    }
    return bytes;
}

void BytePairEncoder::encode(const Vocabulary &vocabulary, std::string_view text, Session &session,
                             std::vector<TokenId> &output) const {
    if (normalizes_ && !is_surely_nfc(text)) text = session.normalized.emplace_back(to_nfc(text));
    encode_normalized(vocabulary, text, session, output);
}

void BytePairEncoder::encode_normalized(const Vocabulary &vocabulary, std::string_view text, Session &session,
                                        std::vector<TokenId> &output) const {
    uint32_t begin = 0;
    for (const uint32_t end : pre_tokenizer_.split(text)) {
        const std::string_view word = text.substr(begin, end - begin);
        begin = end;
        if (session.cache.append(word, output)) continue;
        const size_t first = output.size();
        encode_word(vocabulary, word, session, output);
        session.cache.remember(word, first, output);
    }
}

TokenId BytePairEncoder::find_whole(const Vocabulary &vocabulary, std::string_view word,
                                    std::string &spelled) const {
    if (word.size() > vocabulary.longest_piece()) return kNoToken;
    spelled.clear();
    for (const char c : word) append_character(spelled, kAlphabet.character[static_cast<uint8_t>(c)]);
    const TokenId id = vocabulary.find(spelled);
    return id != kNoToken && vocabulary.is_text(id) ? id : kNoToken;
}

void BytePairEncoder::encode_word(const Vocabulary &vocabulary, std::string_view word, Session &session,
                                  std::vector<TokenId> &output) const {
    if (ignores_merges_) {
        const TokenId whole = find_whole(vocabulary, word, session.spelled);
        if (whole != kNoToken) {
            output.push_back(whole);
            return;
        }
    }
    merge_word(session.scratch, word.size(), Rules(*this, vocabulary, word, session, output),
               first_window(word.size(), vocabulary.longest_piece()));
}

}  // namespace runnel::text
