// Small models trained by SentencePiece, and what it makes of texts with them (scripts/record-tokenizers).
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/engine/text/vocabulary_file.h"
#include "tests/support/data.h"

using namespace runnel;
using nlohmann::json;
using text::TokenId;

namespace {

testing::VocabularyFile file_of(const json &model) {
    testing::VocabularyFile file;
    file.string("tokenizer.ggml.model", "llama");
    file.strings("tokenizer.ggml.tokens", model["tokens"].get<std::vector<std::string>>());
    file.floats("tokenizer.ggml.scores", model["scores"].get<std::vector<float>>());
    file.ints("tokenizer.ggml.token_type", model["types"].get<std::vector<int32_t>>());
    for (const auto &[key, value] : model["keys"].items())
        file.boolean("tokenizer.ggml." + key, value.get<bool>());
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

TEST_CASE("a blank mark in the text is a blank, in user-defined tokens too") {
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

TEST_CASE("gemma4: SentencePiece's pieces, merged by a list") {
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
    // A word of many windows: the same as its parts.
    std::string longest;
    for (int i = 0; i < 3000; ++i) longest += i % 7 == 0 ? "ab" : "abc";
    CHECK(encoded(longest).size() == 3000);
    CHECK(file.without("tokenizer.ggml.merges").error().starts_with("tokenizer.ggml.merges: "));
}
