// tests/data/tokenizer_import.json: tokenizer.json files with the ids that Hugging Face's `tokenizers` gives for
// texts (scripts/check-convert --record).
#include "engine/convert/tokenizer_import.h"

#include <doctest/doctest.h>

#include <functional>

#include "engine/text/tokenizer.h"
#include "gguf/file.h"
#include "tests/support/data.h"
#include "tests/support/hub_folder.h"

using namespace runnel;
using namespace runnel::convert;
using namespace runnel::testing;
using Json = nlohmann::json;

namespace {

Config no_config() {
    return {text::Json::object(), "config.json"};
}

// Imports the tokenizer of a folder into a file without tensors.
gguf::File imported(const std::filesystem::path &folder, uint64_t size,
                    std::vector<std::string> *notes = nullptr) {
    gguf::Writer writer;
    writer.add("general.architecture", "llama");
    std::vector<std::string> all = import_tokenizer(folder, no_config(), size, writer);
    if (notes) *notes = std::move(all);
    writer.start(folder / "out.gguf", {.overwrite = true});
    writer.finish();
    return gguf::File::open(folder / "out.gguf");
}

std::string error_of(const Json &tokenizer, const Json &settings = Json::object(), uint64_t size = 300) {
    const TemporaryDirectory folder;
    write_text(folder / "tokenizer.json", tokenizer.dump());
    write_text(folder / "tokenizer_config.json", settings.dump());
    try {
        imported(folder.path(), size);
    } catch (const gguf::FileError &error) {
        return error.what();
    }
    return "";
}

std::string string_at(const gguf::File &file, const char *key) {
    const gguf::Value *const value = file.find(key);
    return value ? std::string(value->as_string().value_or("?")) : "";
}

TEST_CASE("tokenizer import: the ids of Hugging Face's tokenizers") {
    const Json cases = Json::parse(read_file("tests/data/tokenizer_import.json"));
    REQUIRE(cases.size() == 5);
    const char *const expected[] = {"gpt2/llama-bpe", "gpt2/qwen2", "gpt2/gpt-4o", "llama/default",
                                    "llama/default"};
    for (size_t i = 0; i < cases.size(); ++i) {
        const Json &one = cases[i];
        CAPTURE(one["name"].get<std::string>());
        const TemporaryDirectory folder;
        for (const auto &[name, content] : one["files"].items()) write_text(folder / name, content.dump());
        const gguf::File file = imported(folder.path(), 512);
        const text::Tokenizer tokenizer = text::Tokenizer::load(file);
        CHECK(tokenizer.model_name() == expected[i]);
        CHECK(tokenizer.size() == 512);
        CHECK_FALSE(tokenizer.is_sampleable(511));
        for (size_t t = 0; t < one["texts"].size(); ++t) {
            const auto text = one["texts"][t].get<std::string>();
            CAPTURE(text);
            CHECK(tokenizer.encode(text, {.parse_special = true}) ==
                  one["ids"][t].get<std::vector<text::TokenId>>());
        }
    }
}

TEST_CASE("tokenizer import: special tokens, ends of an answer and templates") {
    const TemporaryDirectory folder;
    Json tokenizer = bare_tokenizer();
    int id = 257;
    for (const char *const piece : {"<|a|>", "<|b|>", "<|c|>", "<word>"})
        tokenizer["added_tokens"].push_back({{"id", id++}, {"content", piece}, {"special", false}});
    write_text(folder / "tokenizer.json", tokenizer.dump());
    write_text(folder / "tokenizer_config.json",
               Json{{"eos_token", {{"content", "<|im_end|>"}}},
                    {"bos_token", "<|a|>"},
                    {"add_bos_token", true},
                    {"chat_template",
                     {{{"name", "default"}, {"template", "old"}}, {{"name", "rag"}, {"template", "r"}}}}}
                   .dump());
    write_text(folder / "generation_config.json", Json{{"eos_token_id", {257, 256, 258, 259}}}.dump());
    write_text(folder / "chat_template.jinja", "new");
    std::vector<std::string> notes;
    const gguf::File file = imported(folder.path(), 264, &notes);
    const auto number = [&](const char *key) { return file.find(key)->as_int().value_or(-1); };
    CHECK(number("tokenizer.ggml.bos_token_id") == 257);
    CHECK(number("tokenizer.ggml.eos_token_id") == 256);
    CHECK(number("tokenizer.ggml.eot_token_id") == 257);
    CHECK(number("tokenizer.ggml.eom_token_id") == 258);
    REQUIRE(notes.size() == 1);
    CHECK(notes[0].find("4 tokens") != std::string::npos);
    CHECK(string_at(file, "tokenizer.chat_template") == "new");
    CHECK(string_at(file, "tokenizer.chat_template.rag") == "r");
    CHECK(string_at(file, "tokenizer.ggml.pre") == "gpt-2");
    const text::Tokenizer loaded = text::Tokenizer::load(file);
    CHECK(loaded.adds_bos());
    CHECK(loaded.is_control(257));        // looks special
    CHECK_FALSE(loaded.is_control(260));  // an added word
    CHECK(loaded.encode("<word>", {.add_special = false}) == std::vector<text::TokenId>{260});
}

TEST_CASE("tokenizer import: what cannot be converted is named") {
    struct Case {
        const char *expected;
        std::function<void(Json &)> change;
    };
    const Case cases[] = {
        {"only BPE", [](Json &t) { t["model"]["type"] = "WordPiece"; }},
        {"has no vocab", [](Json &t) { t["model"].erase("vocab"); }},
        {"has no merges", [](Json &t) { t["model"].erase("merges"); }},
        {"outside of the model's 300 rows", [](Json &t) { t["model"]["vocab"]["big"] = 300; }},
        {"outside of the model's 300 rows", [](Json &t) { t["model"]["vocab"]["low"] = -1; }},
        {"have the same id", [](Json &t) { t["model"]["vocab"]["twin"] = 5; }},
        {"has two ids",
         [](Json &t) {
             t["added_tokens"].push_back({{"id", 280}, {"content", "a"}});
         }},
        {"no id or no content",
         [](Json &t) {
             t["added_tokens"].push_back({{"id", 280}});
         }},
        {"not a pair", [](Json &t) { t["model"]["merges"] = Json::array({"ab"}); }},
        {"not a pair of strings",
         [](Json &t) {
             t["model"]["merges"] = Json::array({Json::array({"a", 5})});
         }},
        {"which is missing", [](Json &t) { t["model"]["merges"] = Json::array({"a b"}); }},
        {"end_of_word_suffix", [](Json &t) { t["model"]["end_of_word_suffix"] = "</w>"; }},
        {"its pre-tokenizer is not known: x+",
         [](Json &t) {
             t["pre_tokenizer"] = {
                 {"type", "Split"}, {"pattern", {{"Regex", "x+"}}}, {"behavior", "Isolated"}};
         }},
        {"'MergedWithNext'",
         [](Json &t) {
             t["pre_tokenizer"] = {
                 {"type", "Split"}, {"pattern", {{"Regex", "x+"}}}, {"behavior", "MergedWithNext"}};
         }},
        {"with ignore_merges", [](Json &t) { t["model"]["ignore_merges"] = true; }},
        {"add_prefix_space", [](Json &t) { t["pre_tokenizer"]["add_prefix_space"] = true; }},
        {"'BertPreTokenizer'",
         [](Json &t) {
             t["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
         }},
        {"its normalizer is of type 'Lowercase'",
         [](Json &t) {
             t["normalizer"] = {{"type", "Lowercase"}};
         }},
        {"no pre_tokenizer", [](Json &t) { t.erase("pre_tokenizer"); }},
    };
    for (const Case &one : cases) {
        Json tokenizer = bare_tokenizer();
        one.change(tokenizer);
        const std::string error = error_of(tokenizer);
        CAPTURE(one.expected);
        CAPTURE(error);
        CHECK(error.find(one.expected) != std::string::npos);
    }
    CHECK(error_of(bare_tokenizer()) == "");
    CHECK(error_of(Json::array()).find("only BPE") != std::string::npos);
    CHECK(error_of(bare_tokenizer(), {{"bos_token", {1, 2}}}) == "");
}

TEST_CASE("tokenizer import: merges that scores cannot express are refused") {
    const Json cases = Json::parse(read_file("tests/data/tokenizer_import.json"));
    Json tokenizer = cases[4]["files"]["tokenizer.json"];
    REQUIRE(cases[4]["name"] == "plain");
    CHECK(error_of(tokenizer, Json::object(), 512) == "");
    const Json other = tokenizer["model"]["merges"][0];
    Json moved = tokenizer;
    moved["model"]["merges"].push_back(other);
    const std::string error = error_of(moved, Json::object(), 512);
    CHECK((error.find("do not follow each other") != std::string::npos ||
           error.find("not every pair") != std::string::npos));
}

}  // namespace
