#include "tests/support/model_vocabulary.h"

#include <cstdio>
#include <stdexcept>
#include <string_view>
#include <unordered_set>

#include "tests/support/random.h"

namespace runnel::testing {
namespace {

constexpr int64_t kSpecial = 3, kBytes = 256;
constexpr std::string_view kSpace = "\u2581";  // SentencePiece's blank
constexpr std::string_view kCharacters =
    "etaoinshrdlcumwfgypbvkjxqzETAOINSHRDLCUMWFGYPBVKJXQZ0123456789.,!?;:'\"-()\n";

// token_type values of GGUF.
enum TokenType : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kByte = 6 };

int32_t type_of(int64_t id) {
    if (id == 0) return kUnknown;
    return id < kSpecial ? kControl : id < kSpecial + kBytes ? kByte : kNormal;
}

}  // namespace

std::vector<std::string> made_up_pieces(int64_t size) {
    std::vector<std::string> pieces = {"<unk>", "<s>", "</s>"};
    for (int byte = 0; byte < kBytes; ++byte) {
        char text[8];
        std::snprintf(text, sizeof text, "<0x%02X>", static_cast<unsigned>(byte));
        pieces.emplace_back(text);
    }
    const size_t first = pieces.size();
    pieces.emplace_back(kSpace);
    for (const char c : kCharacters) pieces.emplace_back(1, c);
    std::unordered_set<std::string> known(pieces.begin(), pieces.end());
    Random random(1);
    while (pieces.size() < static_cast<size_t>(size)) {
        // Earlier pieces are more likely, as in real vocabularies; a blank can only begin a piece.
        const auto pick = [&] {
            const uint64_t range = pieces.size() - first;
            return pieces[first + random.below(random.below(range) + 1)];
        };
        const std::string left = pick(), right = pick(), joined = left + right;
        if (right.starts_with(kSpace) || joined.size() > 15 || !known.insert(joined).second) continue;
        pieces.push_back(joined);
    }
    pieces.resize(static_cast<size_t>(size));
    return pieces;
}

Vocabulary::Vocabulary(const std::filesystem::path &from, int64_t size) : size_(size) {
    if (from.empty()) {
        if (size < kSpecial + kBytes + 1)
            throw std::invalid_argument("make_model: a vocabulary needs 260 tokens");
        return;
    }
    source_ = gguf::File::open(from);
    const gguf::Value *tokens = source_->find("tokenizer.ggml.tokens");
    if (tokens == nullptr || tokens->type() != gguf::ValueType::Array)
        throw std::invalid_argument("make_model: " + from.string() + " has no vocabulary");
    size_ = static_cast<int64_t>(tokens->size());
}

void Vocabulary::add_to(gguf::Writer &writer) const {
    if (source_) {
        for (const auto &[key, value] : source_->metadata())
            if (key.starts_with("tokenizer.")) writer.add(key, value);
        return;
    }
    gguf::Array tokens(gguf::ValueType::String), scores(gguf::ValueType::F32), types(gguf::ValueType::I32);
    int64_t id = 0;
    for (const std::string &piece : made_up_pieces(size_)) {
        tokens.push(piece);
        const int64_t rank = id - kSpecial - kBytes;
        scores.push(rank < 0 ? 0.0f : -static_cast<float>(rank));
        types.push(type_of(id++));
    }
    writer.add("tokenizer.ggml.model", "llama");
    writer.add("tokenizer.ggml.pre", "default");
    writer.add("tokenizer.ggml.tokens", tokens);
    writer.add("tokenizer.ggml.scores", scores);
    writer.add("tokenizer.ggml.token_type", types);
    writer.add("tokenizer.ggml.bos_token_id", 1u);
    writer.add("tokenizer.ggml.eos_token_id", 2u);
    writer.add("tokenizer.ggml.unknown_token_id", 0u);
    writer.add("tokenizer.ggml.add_bos_token", true);
    writer.add("tokenizer.ggml.add_eos_token", false);
}

}  // namespace runnel::testing
