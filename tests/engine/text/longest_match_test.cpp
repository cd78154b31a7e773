// RWKV's tokenizer: the tokens that llama.cpp makes (scripts/record-pieces), a plain computation of the definition,
// escapes, and vocabularies that are refused.
#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/text/chat_prompt.h"
#include "tests/engine/text/vocabulary_file.h"
#include "tests/support/data.h"
#include "tests/support/random.h"

using namespace runnel;
using nlohmann::json;
using text::TokenId;

namespace {

struct WorldVocabulary {
    std::vector<std::string> tokens;
    std::vector<int32_t> types;

    testing::VocabularyFile file() const {
        testing::VocabularyFile file;
        file.string("tokenizer.ggml.model", "rwkv");
        file.strings("tokenizer.ggml.tokens", tokens).ints("tokenizer.ggml.token_type", types);
        return file;
    }
    WorldVocabulary &add(const std::string &token, int32_t type = 1) {
        tokens.push_back(token), types.push_back(type);
        return *this;
    }
};

// As Python's repr() spells a byte.
std::string byte_as_spelled(int byte) {
    if (byte == '\t') return "\\t";
    if (byte == '\n') return "\\n";
    if (byte == '\r') return "\\r";
    if (byte == '\\') return "\\\\";
    if (byte >= 0x20 && byte < 0x7F) return std::string(1, static_cast<char>(byte));
    const char *digits = "0123456789abcdef";
    return std::string("\\x") + digits[byte / 16] + digits[byte % 16];
}

// <s> and all bytes: the id of byte b is b + 1.
WorldVocabulary only_bytes() {
    WorldVocabulary all;
    all.add("<s>", 3);
    for (int byte = 0; byte < 256; ++byte) all.add(byte_as_spelled(byte));
    return all;
}

// The longest piece at every place, by trying all lengths.
std::vector<TokenId> longest_pieces(const std::map<std::string, TokenId> &pieces, const std::string &sample) {
    std::vector<TokenId> ids;
    for (size_t at = 0; at < sample.size();) {
        size_t size = sample.size() - at;
        while (!pieces.contains(sample.substr(at, size))) --size;
        ids.push_back(pieces.at(sample.substr(at, size)));
        at += size;
    }
    return ids;
}

}  // namespace

TEST_CASE("longest match: the tokens are llama.cpp's") {
    const json data = json::parse(testing::read_file("tests/data/longest_match.json"));
    const WorldVocabulary all{data["tokens"].get<std::vector<std::string>>(),
                              data["types"].get<std::vector<int32_t>>()};
    const auto loaded = all.file().load();
    REQUIRE(data["texts"].size() >= 60);
    for (size_t i = 0; i < data["texts"].size(); ++i) {
        const std::string sample = data["texts"][i].get<std::string>();
        CAPTURE(sample);
        const auto ids = loaded.tokenizer.encode(sample);
        CHECK(ids == data["ids"][i].get<std::vector<TokenId>>());
        CHECK(loaded.tokenizer.decode(ids) == sample);
    }
}

TEST_CASE("longest match: any bytes become the longest pieces, and return") {
    testing::Random random(9);
    for (int vocabulary = 0; vocabulary < 6; ++vocabulary) {
        WorldVocabulary all = only_bytes();
        std::map<std::string, TokenId> pieces;
        for (int byte = 0; byte < 256; ++byte) pieces[std::string(1, static_cast<char>(byte))] = byte + 1;
        const auto some_bytes = [&](uint64_t most) {
            std::string bytes;
            for (uint64_t n = 1 + random.below(most); n > 0; --n)
                bytes += "ab\n\\\xE6\x97\xFF\0"[random.below(8)];
            return bytes;
        };
        for (int i = 0; i < 120; ++i) {
            const std::string bytes = some_bytes(9);
            if (!pieces.try_emplace(bytes, static_cast<TokenId>(all.tokens.size())).second) continue;
            std::string spelled;
            for (const char c : bytes) spelled += byte_as_spelled(static_cast<uint8_t>(c));
            all.add(spelled);
        }
        const auto loaded = all.file().load();
        for (int i = 0; i < 60; ++i) {
            const std::string sample = some_bytes(80);
            const auto ids = loaded.tokenizer.encode(sample);
            CHECK(ids == longest_pieces(pieces, sample));
            CHECK(loaded.tokenizer.decode(ids) == sample);
        }
    }
}

TEST_CASE("longest match: special tokens, ends and the name of a template") {
    WorldVocabulary all = only_bytes();
    const auto turn_end = static_cast<TokenId>(all.tokens.size());
    all.add("\\n\\n").add("[PAD]", 5).add("it\\'s").add("User:");
    auto file = all.file();
    file.number("tokenizer.ggml.bos_token_id", 0).number("tokenizer.ggml.eos_token_id", 0);
    file.number("tokenizer.ggml.eot_token_id", static_cast<uint32_t>(turn_end));
    file.string("tokenizer.chat_template", "rwkv-world");
    const auto loaded = file.load();
    const text::Tokenizer &tokenizer = loaded.tokenizer;
    CHECK(tokenizer.model_name() == "rwkv/default");
    CHECK(tokenizer.encode("").empty());
    CHECK_FALSE(tokenizer.adds_bos());
    CHECK(tokenizer.encode("it's") == std::vector<TokenId>{turn_end + 2});
    CHECK(tokenizer.encode("a<s>", {.parse_special = true}) == std::vector<TokenId>{'a' + 1, 0});
    CHECK(tokenizer.encode("<s>").size() == 3);
    CHECK(tokenizer.encode("[PAD]").size() == 5);
    CHECK(tokenizer.is_end_of_generation(0));
    CHECK(tokenizer.is_end_of_generation(turn_end));
    CHECK_FALSE(tokenizer.is_end_of_generation(2));
    CHECK_FALSE(tokenizer.is_sampleable(turn_end + 1));
    CHECK(tokenizer.eot() == turn_end);

    const text::ChatPrompt prompt(loaded.file, tokenizer);
    CHECK(prompt.note() == "");
    const std::vector<text::Message> turns = {
        {"system", "Be brief."}, {"user", " 1+1? "}, {"assistant", "2"}, {"user", "and 2+2?"}};
    std::string rendered;
    for (const text::Segment &segment : prompt.render(turns)) rendered += segment.text;
    CHECK(rendered == "System: Be brief.\n\nUser: 1+1?\n\nAssistant: 2\n\nUser: and 2+2?\n\nAssistant:");
}

TEST_CASE("longest match: roles without a key have no token") {
    const auto loaded = only_bytes().file().load();
    CHECK_FALSE(loaded.tokenizer.bos());
    CHECK_FALSE(loaded.tokenizer.eos());
    CHECK_FALSE(loaded.tokenizer.is_end_of_generation(2));
}

TEST_CASE("longest match: vocabularies with wrong escapes, without a byte or with equal pieces are refused") {
    for (const char *piece : {"ab\\", "\\x", "\\x4", "\\x4g", "a\\xzz"}) {
        CAPTURE(piece);
        CHECK(only_bytes().add(piece).file().error() ==
              "tokenizer.ggml.tokens: token 257 has an incomplete escape");
    }
    CHECK(only_bytes().add("\\x61").file().error() ==
          "tokenizer.ggml.tokens: tokens 98 and 257 are the same bytes");
    WorldVocabulary all = only_bytes();
    all.tokens[1 + 0x8F] = "\\x8e\\x8f";
    CHECK(all.file().error() ==
          "tokenizer.ggml.tokens: has no token for the byte \\x8f, but this kind of tokenizer needs one for "
          "every byte");
}
