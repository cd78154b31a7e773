#include "engine/text/unigram.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "engine/text/metadata.h"
#include "engine/text/utf8.h"

namespace runnel::text {
namespace {

// In steps of 1e-4. Pieces with this score or less are never chosen.
constexpr int32_t kUnusable = -20'000'000, kByBytes = -10'000'000;

int32_t in_steps(float score) {
    if (!std::isfinite(score)) return kUnusable;
    const double steps = std::round(double{score} * 1e4);
    return static_cast<int32_t>(std::clamp(steps, double{kUnusable}, double{-kUnusable}));
}

uint8_t byte_at(std::string_view text, size_t at) {
    return static_cast<uint8_t>(text[at]);
}

}  // namespace

// Of the text from a byte to the end of its stretch.
struct UnigramEncoder::Best {
    static constexpr int64_t kNever = std::numeric_limits<int64_t>::min();
    int64_t score = kNever;
    TokenId id = kNoToken;  // of the first piece; kNoToken: byte tokens of one character
};

UnigramEncoder::UnigramEncoder(const Vocabulary &vocabulary) {
    if (vocabulary.scores().empty())
        fail("tokenizer.ggml.scores", "is missing, but this kind of tokenizer needs it");
    for (const float score : vocabulary.scores()) scores_.push_back(in_steps(score));
    for (size_t byte = 0; byte < 256; ++byte) {
        byte_tokens_[byte] = vocabulary.find_byte(static_cast<uint8_t>(byte));
        if (byte_tokens_[byte] != kNoToken) continue;
        char name[8];
        std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(byte));
        fail("tokenizer.ggml.tokens",
             std::string("has no token ") + name + ", but this kind of tokenizer needs one for every byte");
    }
    std::vector<PieceIndex::Piece> pieces;
    for (TokenId id = 0; id < vocabulary.size(); ++id)
        if (vocabulary.is_text(id) && !vocabulary.piece(id).empty())
            pieces.push_back({vocabulary.piece(id), id});
    pieces_ = PieceIndex(std::move(pieces));
}

// The bytes up to the first place that no piece crosses.
size_t UnigramEncoder::stretch(std::string_view text) const {
    size_t at = 0, reached = 1;
    while (at < reached) {
        const std::string_view rest = text.substr(at);
        const size_t character = first_char(rest).bytes;
        reached = std::max(reached, at + character);
        pieces_.for_matches(rest, [&](TokenId, size_t bytes) { reached = std::max(reached, at + bytes); });
        at += character;
    }
    return at;
}

void UnigramEncoder::encode_stretch(const Vocabulary &vocabulary, std::string_view text,
                                    std::vector<Best> &best, std::vector<TokenId> &output) const {
    best.assign(text.size() + 1, Best{});
    best[text.size()].score = 0;
    std::vector<uint8_t> starts(text.size(), 0);  // the length of the character that begins here
    for (size_t at = 0; at < text.size(); at += starts[at])
        starts[at] = static_cast<uint8_t>(first_char(text.substr(at)).bytes);
    for (size_t at = text.size(); at-- > 0;) {
        if (starts[at] == 0) continue;
        best[at] = {best[at + starts[at]].score + kByBytes, kNoToken};
        pieces_.for_matches(text.substr(at), [&](TokenId id, size_t bytes) {
            const int32_t score = scores_[static_cast<size_t>(id)];
            const int64_t rest = best[at + bytes].score;
            if (score == kUnusable || rest == Best::kNever || rest + score < best[at].score) return;
            best[at] = {rest + score, id};
        });
    }
    for (size_t at = 0; at < text.size();) {
        const TokenId id = best[at].id;
        if (id == kNoToken)
            for (size_t i = 0; i < starts[at]; ++i) output.push_back(byte_tokens_[byte_at(text, at + i)]);
        else
            output.push_back(id);
        at += id == kNoToken ? starts[at] : vocabulary.piece(id).size();
    }
}

void UnigramEncoder::encode(const Vocabulary &vocabulary, std::string_view text,
                            std::vector<TokenId> &output) const {
    std::vector<Best> best;
    while (!text.empty()) {
        const size_t bytes = stretch(text);
        encode_stretch(vocabulary, text.substr(0, bytes), best, output);
        text.remove_prefix(bytes);
    }
}

}  // namespace runnel::text
