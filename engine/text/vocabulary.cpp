#include "engine/text/vocabulary.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "engine/text/hex.h"
#include "engine/text/metadata.h"

namespace runnel::text {
namespace {

const std::string kTokens = "tokenizer.ggml.tokens";
const std::string kTypes = "tokenizer.ggml.token_type";
const std::string kScores = "tokenizer.ggml.scores";

constexpr size_t kMaxTokens = size_t{1} << 28;  // so that ids, and twice as many slots, fit in 32 bits

void check_length(const std::string &key, size_t length, size_t tokens) {
    if (length && length != tokens)
        fail(key, "has " + std::to_string(length) + " entries for " + std::to_string(tokens) + " tokens");
}

std::vector<TokenType> load_types(const gguf::File &file, size_t tokens) {
    const auto numbers = get_ints(file, kTypes);
    check_length(kTypes, numbers.size(), tokens);
    std::vector<TokenType> types(tokens, TokenType::Normal);
    for (size_t i = 0; i < numbers.size(); ++i) {
        // Some converters write type 0, "undefined", for padding.
        if (numbers[i] < 0 || numbers[i] > 6)
            fail(kTypes,
                 "entry " + std::to_string(i) + " is " + std::to_string(numbers[i]) + ", not a token type");
        types[i] = numbers[i] == 0 ? TokenType::Unused : static_cast<TokenType>(numbers[i]);
    }
    return types;
}

}  // namespace

Vocabulary Vocabulary::load(const gguf::File &file) {
    Vocabulary vocabulary;
    vocabulary.pieces_ = require_strings(file, kTokens);
    const size_t tokens = vocabulary.pieces_.size();
    if (tokens == 0) fail(kTokens, "is empty");
    if (tokens > kMaxTokens) fail(kTokens, "has more than " + std::to_string(kMaxTokens) + " entries");
    vocabulary.types_ = load_types(file, tokens);
    vocabulary.scores_ = get_floats(file, kScores);
    check_length(kScores, vocabulary.scores_.size(), tokens);
    if (std::any_of(vocabulary.scores_.begin(), vocabulary.scores_.end(),
                    [](float s) { return std::isnan(s); }))
        fail(kScores, "has an entry that is not a number");
    vocabulary.index_pieces();
    return vocabulary;
}

void Vocabulary::index_pieces() {
    slots_.resize(std::bit_ceil(2 * pieces_.size()));
    mask_ = slots_.size() - 1;
    for (TokenId id = 0; id < size(); ++id) {
        const std::string_view text = piece(id);
        longest_piece_ = std::max(longest_piece_, text.size());
        if (text.size() > kMaxPieceBytes)
            fail(kTokens, "token " + std::to_string(id) + " is longer than 32 KiB");
        if (text.empty()) continue;
        uint16_t &longest = longest_from_[static_cast<uint8_t>(text[0])];
        longest = std::max(longest, static_cast<uint16_t>(text.size()));
        const uint64_t hash = hash_bytes(text);
        const auto tag = static_cast<uint32_t>(hash >> 32);
        int probes = 0;
        uint64_t at = hash & mask_;
        for (; slots_[at].id != kNoToken; at = (at + 1) & mask_) {
            if (slots_[at].tag == tag && piece(slots_[at].id) == text)
                fail(kTokens, "tokens " + std::to_string(slots_[at].id) + " and " + std::to_string(id) +
                                  " have the same text");
            if (++probes > kMaxProbes) fail(kTokens, "too many pieces collide: the file looks tampered with");
        }
        slots_[at] = {tag, id};
    }
}

TokenId Vocabulary::find(std::string_view text, uint64_t hash) const {
    if (text.empty()) return kNoToken;
    const auto tag = static_cast<uint32_t>(hash >> 32);
    for (uint64_t at = hash & mask_; slots_[at].id != kNoToken; at = (at + 1) & mask_)
        if (slots_[at].tag == tag && piece(slots_[at].id) == text) return slots_[at].id;
    return kNoToken;
}

TokenId Vocabulary::find_byte(uint8_t byte) const {
    constexpr char digits[] = "0123456789ABCDEF";
    const char spelled[] = {'<', '0', 'x', digits[byte >> 4], digits[byte & 15], '>'};
    const TokenId id = find({spelled, sizeof spelled});
    if (id != kNoToken) return id;
    const char raw = static_cast<char>(byte);
    return find({&raw, 1});
}

std::optional<uint8_t> Vocabulary::byte_value(TokenId id) const {
    const std::string_view text = piece(id);
    if (type(id) != TokenType::Byte || text.size() != 6 || !text.starts_with("<0x") || text[5] != '>')
        return std::nullopt;
    const int high = hex_digit(text[3]), low = hex_digit(text[4]);
    if (high < 0 || low < 0) return std::nullopt;
    return static_cast<uint8_t>(high * 16 + low);
}

}  // namespace runnel::text
