// The words and tokens that the models' own tokenizers produce, as recorded from Hugging Face's `tokenizers`
// (scripts/record-tokenizers), and normalization.
#include "engine/text/pre_tokenizer.h"

#include <doctest/doctest.h>
#include <utf8proc.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "engine/text/normalize.h"
#include "engine/text/tokenizer.h"
#include "tests/engine/text/vocabulary_file.h"
#include "tests/support/data.h"

using namespace runnel;
using nlohmann::json;
using text::TokenId;

namespace {

json recorded() {
    return json::parse(testing::read_file("tests/data/pre_tokenizers.json"));
}

// "3x5 1": five words of three bytes, then one of one byte.
std::vector<uint32_t> ends_of(const std::string &runs) {
    std::vector<uint32_t> ends;
    std::istringstream stream(runs);
    uint32_t at = 0;
    for (std::string run; stream >> run;) {
        const size_t times = run.find('x');
        const auto bytes = static_cast<uint32_t>(std::stoul(run));
        const size_t count = times == run.npos ? 1 : std::stoul(run.substr(times + 1));
        for (size_t i = 0; i < count; ++i) ends.push_back(at += bytes);
    }
    return ends;
}

std::string recorded_name(const json &data, const text::PreTokenizerKind &kind) {
    const std::string first(kind.names.front());
    return data["same"].contains(first) ? data["same"][first].get<std::string>() : first;
}

// Loads this vocabulary with the pre-tokenizer `pre`.
testing::VocabularyFile::Loaded with_pre_tokenizer(const json &data, const std::string &pre) {
    testing::VocabularyFile file;
    file.string("tokenizer.ggml.model", "gpt2").string("tokenizer.ggml.pre", pre);
    file.strings("tokenizer.ggml.tokens", data["tokens"].get<std::vector<std::string>>());
    file.strings("tokenizer.ggml.merges", data["merges"].get<std::vector<std::string>>());
    return file.load();
}

constexpr text::EncodeOptions kPlain{.add_special = false};

}  // namespace

TEST_CASE("every pre-tokenizer splits words by its definition") {
    const json data = recorded();
    for (const text::PreTokenizerKind &kind : text::pre_tokenizer_kinds()) {
        const std::string name = recorded_name(data, kind);
        CAPTURE(name);
        REQUIRE(data["kinds"].contains(name));
        const json &words = data["kinds"][name]["words"];
        const text::PreTokenizer splitter(kind);
        for (size_t i = 0; i < words.size(); ++i) {
            std::string sample = data["texts"][i].get<std::string>();
            CAPTURE(i);
            CAPTURE(sample);
            if (text::find_pre_tokenizer(name)->normalizes) sample = text::to_nfc(sample);
            // The published pattern keeps "12½345" together; pre_tokenizer_kinds.cpp explains the difference.
            const bool mixed = sample.find("½") != sample.npos || sample.find("〇") != sample.npos;
            if (name == "superbpe" && mixed) continue;
            CHECK(splitter.split(sample) == ends_of(words[i].get<std::string>()));
        }
    }
}

TEST_CASE("text becomes the tokens that `tokenizers` makes") {
    const json data = recorded();
    size_t compared = 0;
    for (const auto &[name, kind] : data["kinds"].items()) {
        if (!kind.contains("ids")) continue;
        CAPTURE(name);
        const auto loaded = with_pre_tokenizer(data, name);
        for (size_t i = 0; i < kind["ids"].size(); ++i) {
            CAPTURE(i);
            const std::string sample = data["texts"][i].get<std::string>();
            CHECK(loaded.tokenizer.encode(sample, kPlain) == kind["ids"][i].get<std::vector<TokenId>>());
            ++compared;
        }
    }
    CHECK(compared == 4 * data["texts"].size());
}

TEST_CASE("llama.cpp's rules can be selected") {
    const auto words = [](const char *name, const std::string &sample, text::Conventions conventions) {
        return text::PreTokenizer(*text::find_pre_tokenizer(name), conventions).split(sample).size();
    };
    using enum text::Conventions;
    CHECK(words("gpt-4o", "नमस्ते", Model) == 1);
    CHECK(words("gpt-4o", "नमस्ते", Llama) == 3);
    CHECK(words("tekken", "e\u0301a", Model) == 1);
    CHECK(words("tekken", "e\u0301a", Llama) == 2);
    CHECK(words("deepseek-v3", "a ~~b", Model) == words("deepseek-v3", "a ~~b", Llama) - 1);
    CHECK(words("qwen2", "नमस्ते", Model) == words("qwen2", "नमस्ते", Llama));
}

TEST_CASE("an unknown pre-tokenizer is replaced by the nearest, and a note says so") {
    const json data = recorded();
    CHECK(text::nearest_pre_tokenizer("qwen4") == "qwen2");
    CHECK(text::nearest_pre_tokenizer("deepseek-v9") == "deepseek-v3");
    CHECK(text::nearest_pre_tokenizer("xyz") == "dbrx");
    CHECK(text::nearest_pre_tokenizer("") == "dbrx");
    const auto loaded = with_pre_tokenizer(data, "kimi\x1B[2J");
    CHECK(loaded.tokenizer.note().starts_with("tokenizer.ggml.pre: "));
    CHECK(loaded.tokenizer.note().find("'kimi-k2'") != std::string::npos);
    CHECK(loaded.tokenizer.note().find('\x1B') == std::string::npos);
    CHECK(with_pre_tokenizer(data, "kimi-k2").tokenizer.note().empty());
}

TEST_CASE("a megabyte of one kind of character takes linear time") {
    for (const text::PreTokenizerKind &kind : text::pre_tokenizer_kinds()) {
        CAPTURE(kind.names.front());
        const text::PreTokenizer splitter(kind);
        for (const char c : {'1', 'a', ' ', '~', '\n'}) {
            CAPTURE(c);
            const std::string run(1 << 17, c);
            CHECK(splitter.split(run).back() == run.size());
        }
    }
}

TEST_CASE("text is normalized to form C") {
    CHECK(text::to_nfc("e\u0301a") == "\u00E9a");
    CHECK(text::to_nfc("xe\u0302\u0301y\u212Bz") == "x\u1EBFy\u00C5z");
    CHECK(text::to_nfc("\u1112\u1161\u11AB\uAC00\u11A8") == "\uD55C\uAC01");
    CHECK(text::to_nfc("\u0958") == "\u0915\u093C");                  // composition exclusion
    CHECK(text::to_nfc("\uFB01\u00BD") == "\uFB01\u00BD");            // compatibility characters are kept
    CHECK(text::to_nfc("e\xFF\u0301 \xC3(") == "e\xFF\u0301 \xC3(");  // nothing composes across invalid bytes
    CHECK(text::is_surely_nfc("plain text, \u00E9, \u4E2D\uAC00"));
    CHECK_FALSE(text::is_surely_nfc("e\u0301"));
}

TEST_CASE("characters classified as inert are inert") {
    size_t inert = 0;
    for (uint32_t c = 1; c < 0x20000; ++c) {
        if (c >= 0xD800 && c < 0xE000) continue;
        utf8proc_uint8_t bytes[4];
        const auto size = static_cast<size_t>(utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes));
        const std::string one(reinterpret_cast<const char *>(bytes), size);
        if (!text::is_surely_nfc(one)) continue;
        ++inert;
        CAPTURE(c);
        // It stays unchanged after any character; the characters with the most compositions represent all.
        REQUIRE(utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class == 0);
        for (const char *const before : {"", "e", "\u1100", "\uAC00", "\u0915", "\u3046", "\u09C7"}) {
            const std::string whole = before + one;
            utf8proc_uint8_t *const normal =
                utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t *>(whole.c_str()));
            const bool same = whole == reinterpret_cast<const char *>(normal);
            free(normal);
            REQUIRE(same);
        }
    }
    CHECK(inert > 30000);
}
