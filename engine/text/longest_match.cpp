#include "engine/text/longest_match.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <optional>

#include "engine/text/hex.h"
#include "engine/text/metadata.h"

namespace runnel::text {
namespace {

constexpr const char *kPiecesKey = "tokenizer.ggml.tokens";

// nullopt: an incomplete escape.
std::optional<std::string> unescaped(std::string_view spelled) {
    std::string bytes;
    for (size_t i = 0; i < spelled.size(); ++i) {
        if (spelled[i] != '\\') {
            bytes += spelled[i];
            continue;
        }
        if (++i == spelled.size()) return std::nullopt;
        switch (spelled[i]) {
            case 't':
                bytes += '\t';
                break;
            case 'n':
                bytes += '\n';
                break;
            case 'r':
                bytes += '\r';
                break;
            case 'x': {
                if (spelled.size() - i < 3) return std::nullopt;
                const int high = hex_digit(spelled[i + 1]), low = hex_digit(spelled[i + 2]);
                if (high < 0 || low < 0) return std::nullopt;
                bytes += static_cast<char>(16 * high + low);
                i += 2;
                break;
            }
            default:
                bytes += spelled[i];
        }
    }
    return bytes;
}

}  // namespace

LongestMatchEncoder::LongestMatchEncoder(const Vocabulary &vocabulary) {
    struct Place {
        size_t begin, size;
        TokenId id;
    };
    std::vector<Place> places;
    for (TokenId id = 0; id < vocabulary.size(); ++id) {
        if (vocabulary.type(id) != TokenType::Normal) continue;
        const std::optional<std::string> bytes = unescaped(vocabulary.piece(id));
        if (!bytes) fail(kPiecesKey, "token " + std::to_string(id) + " has an incomplete escape");
        if (bytes->empty()) continue;
        places.push_back({bytes_.size(), bytes->size(), id});
        bytes_ += *bytes;
    }
    std::vector<PieceIndex::Piece> pieces;
    for (const Place &place : places)
        pieces.push_back({std::string_view(bytes_).substr(place.begin, place.size), place.id});
    pieces_ = PieceIndex(std::move(pieces));

    std::array<bool, 256> found = {};
    const PieceIndex::Piece *before = nullptr;
    for (const PieceIndex::Piece &piece : pieces_.sorted()) {
        if (before && before->text == piece.text)
            fail(kPiecesKey, "tokens " + std::to_string(std::min(before->id, piece.id)) + " and " +
                                 std::to_string(std::max(before->id, piece.id)) + " are the same bytes");
        if (piece.text.size() == 1) found[static_cast<uint8_t>(piece.text[0])] = true;
        before = &piece;
    }
    for (size_t byte = 0; byte < found.size(); ++byte) {
        if (found[byte]) continue;
        char text[8];
        std::snprintf(text, sizeof text, "\\x%02x", static_cast<unsigned>(byte));
        fail(kPiecesKey, std::string("has no token for the byte ") + text +
                             ", but this kind of tokenizer needs one for every byte");
    }
}

void LongestMatchEncoder::encode(std::string_view text, std::vector<TokenId> &output) const {
    while (!text.empty()) {
        TokenId longest = kNoToken;
        size_t bytes = 0;
        pieces_.for_matches(text, [&](TokenId id, size_t size) { longest = id, bytes = size; });
        output.push_back(longest);
        text.remove_prefix(bytes);
    }
}

std::string LongestMatchEncoder::bytes_of(std::string_view spelled) {
    return unescaped(spelled).value_or("");
}

}  // namespace runnel::text
