// Compares token ids with those recorded from real vocabularies:
// ../shared/data/vocab/README.md describes the files.
#include <doctest/doctest.h>

#include <sstream>
#include <string>
#include <vector>

#include "engine/text/tokenizer.h"
#include "tests/support/data.h"
#include "tests/support/skip.h"

using namespace runnel;
using text::TokenId;
using text::Tokenizer;

namespace {

std::vector<std::string> blocks(const std::string &input) {
    const std::string separator = "\n__ggml_vocab_test__\n";
    std::vector<std::string> found;
    for (size_t at = 0, end; (end = input.find(separator, at)) != input.npos; at = end + separator.size())
        found.push_back(input.substr(at, end - at));
    return found;
}

std::vector<std::vector<TokenId>> id_lines(const std::string &output) {
    std::vector<std::vector<TokenId>> lines;
    std::istringstream stream(output);
    for (std::string line; std::getline(stream, line);) {
        std::istringstream numbers(line);
        lines.emplace_back(std::istream_iterator<TokenId>(numbers), std::istream_iterator<TokenId>());
    }
    return lines;
}

const char *const kVocabularies[] = {"llama-spm", "phi-3",          "gemma3",    "gpt-2",  "llama-bpe",
                                     "qwen2",     "deepseek-coder", "starcoder", "tekken", "gpt-4o"};

}  // namespace

TEST_CASE("recorded token ids of real vocabularies are reproduced") {
    for (const std::string name : kVocabularies) {
        CAPTURE(name);
        const auto base = testing::shared_data() / "vocab" / name;
        if (!testing::has_shared_data("vocab/" + name + ".gguf")) {
            testing::skip("no " + base.string() + ".gguf");
            continue;
        }
        const auto file = gguf::File::open(base.string() + ".gguf");
        const auto tokenizer = Tokenizer::load(file);
        const auto texts = blocks(testing::read_file(base.string() + ".inp"));
        const auto expected = id_lines(testing::read_file(base.string() + ".out"));
        REQUIRE(texts.size() == 46);
        REQUIRE(expected.size() == texts.size());
        for (size_t i = 0; i < texts.size(); ++i) {
            CAPTURE(texts[i]);
            const auto ids = tokenizer.encode(texts[i], {.add_special = false});
            CHECK(ids == expected[i]);
            CHECK(tokenizer.decode(ids) == texts[i]);
        }
    }
}
