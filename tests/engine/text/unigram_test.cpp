// Unigram segmentation: the tokens that llama.cpp makes (scripts/record-pieces), a plain computation of the
// definition, and vocabularies that are refused.
#include <doctest/doctest.h>

#include <cmath>
#include <map>
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

using Ids = std::vector<TokenId>;

testing::VocabularyFile file_of(const json &record) {
    testing::VocabularyFile file;
    file.string("tokenizer.ggml.model", "plamo2");
    file.strings("tokenizer.ggml.tokens", record["tokens"].get<std::vector<std::string>>());
    file.floats("tokenizer.ggml.scores", record["scores"].get<std::vector<float>>());
    file.ints("tokenizer.ggml.token_type", record["types"].get<std::vector<int32_t>>());
    return file;
}

json record() {
    return json::parse(testing::read_file("tests/data/unigram.json"));
}

// Characters of valid UTF-8.
std::vector<std::string> characters(const std::string &text) {
    std::vector<std::string> all;
    for (const char c : text)
        if ((static_cast<uint8_t>(c) & 0xC0) == 0x80)
            all.back() += c;
        else
            all.emplace_back(1, c);
    return all;
}

// The best pieces from every character on; the longest first among equally good ones.
Ids plainly(const json &record, const std::string &text) {
    std::map<std::string, std::pair<int64_t, TokenId>> pieces;
    for (size_t id = 0; id < record["tokens"].size(); ++id)
        if (record["types"][id] == 1)
            pieces[record["tokens"][id]] = {std::llround(record["scores"][id].get<float>() * 1e4),
                                            static_cast<TokenId>(id)};
    const std::vector<std::string> letters = characters(text);
    std::vector<int64_t> scores(letters.size() + 1, 0);
    std::vector<std::pair<size_t, Ids>> first(letters.size());
    for (size_t at = letters.size(); at-- > 0;) {
        bool found = false;
        for (size_t count = letters.size() - at; count > 0; --count) {
            std::string piece;
            for (size_t i = 0; i < count; ++i) piece += letters[at + i];
            const auto known = pieces.find(piece);
            if (known == pieces.end() || known->second.first <= -20'000'000) continue;
            const int64_t score = scores[at + count] + known->second.first;
            if (found && score <= scores[at]) continue;
            found = true, scores[at] = score, first[at] = {count, {known->second.second}};
        }
        const int64_t by_bytes = scores[at + 1] - 10'000'000;
        if (found && by_bytes <= scores[at]) continue;
        scores[at] = by_bytes, first[at] = {1, {}};
        for (const char byte : letters[at]) first[at].second.push_back(4 + static_cast<uint8_t>(byte));
    }
    Ids ids;
    for (size_t at = 0; at < letters.size(); at += first[at].first)
        ids.insert(ids.end(), first[at].second.begin(), first[at].second.end());
    return ids;
}

}  // namespace

TEST_CASE("unigram: the tokens are llama.cpp's") {
    const json data = record();
    const auto loaded = file_of(data).load();
    REQUIRE(data["texts"].size() >= 60);
    for (size_t i = 0; i < data["texts"].size(); ++i) {
        const std::string sample = data["texts"][i].get<std::string>();
        CAPTURE(sample);
        const Ids ids = loaded.tokenizer.encode(sample);
        CHECK(ids == data["ids"][i].get<Ids>());
        CHECK(ids == plainly(data, sample));
        CHECK(loaded.tokenizer.decode(ids) == sample);
    }
}

TEST_CASE("unigram: the tokens have the largest sum of scores, and spell the text") {
    json data = record();
    testing::Random random(5);
    const std::vector<std::string> letters = characters("abcde \n.é日本語😀ü");
    for (int vocabulary = 0; vocabulary < 8; ++vocabulary) {
        // Small steps make equal sums likely.
        for (size_t id = 260; id < data["scores"].size(); ++id)
            data["scores"][id] = random.below(12) == 0 ? -1500.0 : -0.5 * double(1 + random.below(9));
        const auto loaded = file_of(data).load();
        for (int i = 0; i < 40; ++i) {
            std::string sample;
            for (uint64_t n = random.below(60); n > 0; --n) sample += letters[random.below(letters.size())];
            CAPTURE(sample);
            const Ids ids = loaded.tokenizer.encode(sample);
            CHECK(ids == plainly(data, sample));
            CHECK(loaded.tokenizer.decode(ids) == sample);
        }
    }
}

TEST_CASE("unigram: special tokens only where they may be, and bytes that are not valid UTF-8") {
    const json data = record();
    auto file = file_of(data);
    const auto loaded = file.load();
    const std::string sample = "a<|plamo:eos|>b";
    const Ids special = loaded.tokenizer.encode(sample, {.parse_special = true});
    CHECK(std::count(special.begin(), special.end(), 2) == 1);
    const Ids plain = loaded.tokenizer.encode(sample);
    CHECK(std::count(plain.begin(), plain.end(), 2) == 0);
    CHECK(loaded.tokenizer.decode(plain) == sample);
    CHECK(loaded.tokenizer.encode("\xFF\xE6\x97z") == Ids{4 + 0xFF, 4 + 0xE6, 4 + 0x97, 4 + 'z'});
    CHECK(loaded.tokenizer.encode("").empty());
    CHECK(loaded.tokenizer.model_name() == "plamo2/default");
    CHECK_FALSE(loaded.tokenizer.adds_bos());
    CHECK(file.boolean("tokenizer.ggml.add_bos_token", true).load().tokenizer.encode("") == Ids{1});
}

TEST_CASE("unigram: vocabularies without scores or without a byte are refused") {
    json data = record();
    CHECK(file_of(data).without("tokenizer.ggml.scores").error().find("tokenizer.ggml.scores: is missing") ==
          0);
    data["tokens"][4 + 0x41] = "<0x41";
    CHECK(file_of(data).error().find("has no token <0x41>") != std::string::npos);
}
