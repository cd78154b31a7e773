// Small models trained by SentencePiece, and SentencePiece's encodings of texts (scripts/record-tokenizers).
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/engine/text/vocabulary_file.h"
#include "tests/support/data.h"
#include "tests/support/random.h"

using namespace runnel;
using nlohmann::json;
using text::TokenId;

namespace {

std::string from_hex(const std::string &digits) {
    std::string bytes;
    for (size_t i = 0; i + 1 < digits.size(); i += 2)
        bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
    return bytes;
}

testing::VocabularyFile file_of(const json &model) {
    testing::VocabularyFile file;
    file.string("tokenizer.ggml.model", "llama");
    file.strings("tokenizer.ggml.tokens", model["tokens"].get<std::vector<std::string>>());
    file.floats("tokenizer.ggml.scores", model["scores"].get<std::vector<float>>());
    file.ints("tokenizer.ggml.token_type", model["types"].get<std::vector<int32_t>>());
    for (const auto &[key, value] : model["keys"].items())
        file.boolean("tokenizer.ggml." + key, value.get<bool>());
    if (model.contains("charsmap"))
        file.bytes("tokenizer.ggml.precompiled_charsmap", from_hex(model["charsmap"]));
    return file;
}

constexpr text::EncodeOptions kPlain{.add_special = false};

}  // namespace

TEST_CASE("SentencePiece models give SentencePiece's tokens") {
    const json data = json::parse(testing::read_file("tests/data/sentencepiece.json"));
    for (const auto &[name, model] : data["models"].items()) {
        CAPTURE(name);
        const auto loaded = file_of(model).load();
        for (size_t i = 0; i < data["texts"].size(); ++i) {
            const std::string sample = data["texts"][i].get<std::string>();
            CAPTURE(sample);
            CHECK(loaded.tokenizer.encode(sample, kPlain) == model["ids"][i].get<std::vector<TokenId>>());
        }
    }
}

TEST_CASE("charsmap: a value of another form is refused; a damaged one never causes reads out of bounds") {
    const json data = json::parse(testing::read_file("tests/data/sentencepiece.json"));
    const json &model = data["models"]["replaced"];
    const std::string whole = from_hex(model["charsmap"]), key = "tokenizer.ggml.precompiled_charsmap";
    auto file = file_of(model);
    const std::string no_trie = key + ": does not start with the size of a trie";
    CHECK(file.bytes(key, "").error() == "");
    CHECK(file.bytes(key, "abc").error().starts_with(no_trie));
    CHECK(file.bytes(key, whole.substr(0, 400)).error().starts_with(no_trie));
    CHECK(file.bytes(key, std::string("\xff\xff\xff\xff", 4) + whole.substr(4)).error().starts_with(no_trie));
    CHECK(file.bytes(key, whole.substr(0, whole.size() - 1)).error() ==
          key + ": its replacements do not end with a zero byte");
    CHECK(file.boolean(key, true).error() == key + ": is not an array");
    CHECK(file.ints(key, {1, 256}).error() == key + ": is not an array of bytes");
    testing::Random random(20261121);
    for (int round = 0; round < 60; ++round) {
        CAPTURE(round);
        std::string damaged = whole;
        for (int edits = 0; edits < 20; ++edits)
            damaged[4 + random.below(damaged.size() - 5)] = static_cast<char>(random.bits());
        const auto loaded = file.bytes(key, damaged).load();
        for (const json &sample : data["texts"])
            CHECK(loaded.tokenizer.encode(sample.get<std::string>(), kPlain).size() < 100000);
    }
}

TEST_CASE("charsmap: a cyclic trie takes linear time") {
    // "a" leads back to the root: following it would take time quadratic in the text's length, here
    // minutes.
    const json data = json::parse(testing::read_file("tests/data/sentencepiece.json"));
    std::string bytes("\0\4\0\0", 4);
    for (uint32_t unit = 0; unit < 256; ++unit) {
        const uint32_t word = unit == 'a' ? unit << 10 | unit : 0;
        for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(word >> shift & 0xff);
    }
    bytes += std::string("x\0", 2);
    auto file = file_of(data["models"]["replaced"]);
    const auto loaded = file.bytes("tokenizer.ggml.precompiled_charsmap", bytes).load();
    const std::string text(400'000, 'a');
    CHECK(loaded.tokenizer.decode(loaded.tokenizer.encode(text, kPlain)) == text);
}

TEST_CASE("charsmap: invalid UTF-8 is kept") {
    const json data = json::parse(testing::read_file("tests/data/sentencepiece.json"));
    const auto loaded = file_of(data["models"]["replaced"]).load();
    const std::string broken = "\xff\xe3\x80 \xc3";
    CHECK(loaded.tokenizer.decode(loaded.tokenizer.encode(broken, kPlain)) == broken);
    CHECK(loaded.tokenizer.note().empty());
}

TEST_CASE("gemma4: ends of turns, struck-out text, suppressed tokens") {
    const int32_t first = testing::kFirstPiece;
    auto file = testing::sentencepiece_file({"<eos>", "<turn|>", "<|tool_response>", "b", "a", "<image|>"});
    std::vector<int32_t> types(static_cast<size_t>(first) + 6, 1);
    std::fill(types.begin() + 3, types.begin() + first, 6);
    for (const int32_t user : {first + 1, first + 2, 2}) types[static_cast<size_t>(user)] = 4;
    types[static_cast<size_t>(first)] = 3;
    file.string("tokenizer.ggml.model", "gemma4").strings("tokenizer.ggml.merges", {});
    file.ints("tokenizer.ggml.token_type", types);
    file.number("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(first));
    file.ints("tokenizer.ggml.suppress_tokens", {first + 5, -1, 1 << 20});
    const auto loaded = file.load();
    const text::Tokenizer &tokenizer = loaded.tokenizer;
    for (const int32_t end : {first, first + 1, first + 2}) CHECK(tokenizer.is_end_of_generation(end));
    CHECK_FALSE(tokenizer.is_end_of_generation(2));  // an HTML tag
    CHECK(tokenizer.eot() == first + 1);
    CHECK(tokenizer.decode(2) == "</s>");
    CHECK_FALSE(tokenizer.is_sampleable(first + 5));
    CHECK(tokenizer.is_sampleable(first + 4));
    CHECK(file.ints("tokenizer.ggml.suppress_tokens", {}).error() == "");
    CHECK(file.boolean("tokenizer.ggml.suppress_tokens", true)
              .error()
              .starts_with("tokenizer.ggml.suppress_tokens"));
}

TEST_CASE("a blank mark in the text becomes a blank, also in user-defined tokens") {
    auto file = testing::sentencepiece_file({"▁", "a", "▁▁", "▁a"});
    std::vector<int32_t> types(testing::kFirstPiece + 4, 1);
    for (int i = 0; i < testing::kFirstPiece; ++i) types[static_cast<size_t>(i)] = i == 0 ? 2 : i < 3 ? 3 : 6;
    types[testing::kFirstPiece + 2] = 4;
    file.ints("tokenizer.ggml.token_type", types).boolean("tokenizer.ggml.add_space_prefix", false);
    const auto loaded = file.load();
    const text::Tokenizer &tokenizer = loaded.tokenizer;
    const auto expected = tokenizer.encode("a   a", kPlain);
    CHECK(expected ==
          std::vector<TokenId>{testing::kFirstPiece + 1, testing::kFirstPiece + 2, testing::kFirstPiece + 3});
    CHECK(tokenizer.encode("a▁▁▁a", kPlain) == expected);
    CHECK(tokenizer.encode("a ▁ a", kPlain) == expected);
    CHECK(tokenizer.decode(expected) == "a   a");
    const std::vector<text::Segment> segments = {{"a▁", false}, {"▁</s>", true}};
    CHECK(tokenizer.encode(segments, kPlain) ==
          std::vector<TokenId>{testing::kFirstPiece + 1, testing::kFirstPiece + 2, 2});
}

TEST_CASE("gemma4: SentencePiece's pieces, merged by a merge list") {
    auto file = testing::sentencepiece_file({"▁", "a", "b", "c", "ab", "bc", "abc", "▁a"});
    file.string("tokenizer.ggml.model", "gemma4").without("tokenizer.ggml.scores");
    file.strings("tokenizer.ggml.merges", {"b c", "a bc", "▁ a", "a b"});
    const auto loaded = file.load();
    const auto encoded = [&](std::string_view sample) {
        std::vector<std::string> pieces;
        for (const TokenId id : loaded.tokenizer.encode(sample, kPlain))
            pieces.emplace_back(loaded.tokenizer.piece(id));
        return pieces;
    };
    using Pieces = std::vector<std::string>;
    CHECK(encoded("abc") == Pieces{"abc"});
    CHECK(encoded("ab c") == Pieces{"ab", "▁", "c"});
    CHECK(encoded("a ab") == Pieces{"a", "▁a", "b"});
    CHECK(encoded("é") == Pieces{"<0xC3>", "<0xA9>"});
    CHECK(loaded.tokenizer.decode(loaded.tokenizer.encode("abc é ab", kPlain)) == "abc é ab");
    // A word of many windows must encode like its parts.
    std::string longest;
    for (int i = 0; i < 3000; ++i) longest += i % 7 == 0 ? "ab" : "abc";
    CHECK(encoded(longest).size() == 3000);
    CHECK(file.without("tokenizer.ggml.merges").error().starts_with("tokenizer.ggml.merges: "));
}
