#include "engine/grammar/masks.h"

#include <nlohmann/json.hpp>

#include "engine/grammar/schema.h"
#include "tests/engine/grammar/grammar_support.h"
#include "tests/support/data.h"
#include "tests/support/random.h"
#include "tests/support/skip.h"

using namespace runnel;
using namespace runnel::grammar;
using testing::Random;

namespace {

// An end token, all bytes, texts that span several JSON tokens, two equal texts, and a token without text.
std::vector<std::string> small_vocabulary() {
    std::vector<std::string> texts{"</s>", ""};
    for (int byte = 0; byte < 256; ++byte) texts.push_back(std::string(1, static_cast<char>(byte)));
    for (const char *text : {"{\"",
                             "\":",
                             "\": ",
                             "\",",
                             "\", \"",
                             "\"}",
                             "}}",
                             "],",
                             "[[",
                             " {",
                             "  ",
                             "\n",
                             "\n    ",
                             "name",
                             "na",
                             "am",
                             "value",
                             "the cat",
                             "a b c d e f g h",
                             "word word",
                             "12",
                             "123",
                             "0.5",
                             "-1",
                             "e+",
                             "true",
                             "false",
                             "null",
                             "nul",
                             "\\n",
                             "\\\"",
                             "\\u00",
                             "\\u00e9",
                             "\\ud83d",
                             "é",
                             "\xc3",
                             "\xa9\"",
                             "漢字",
                             "\xf0\x9f",
                             "\x98\x80",
                             "x\xe6",
                             "-0",
                             "abcabcabcabc",
                             "2024-",
                             "ab",
                             "ab",
                             "<think>",
                             "\"\"",
                             "\"a",
                             "b\"",
                             "][",
                             "+",
                             "é\"",
                             ", ",
                             ": ",
                             "{}",
                             "[]"})
        texts.push_back(text);
    return texts;
}

// Texts of a few characters of all lengths in UTF-8, which share many beginnings; some end inside a character.
std::vector<std::string> random_vocabulary(Random &random) {
    std::vector<std::string> texts = small_vocabulary();
    const std::string_view parts[] = {"a",  "a",  "b", "z", " ",  "n",  "é",    "ü",
                                      "漢", "字", "😀", "😁", "\"", "\\", "\xc3", "\x80"};
    for (int i = 0; i < 800; ++i) {
        std::string text;
        const size_t kinds = random.below(3) ? 12 : std::size(parts);  // mostly plain characters only
        for (size_t left = 1 + random.below(random.below(4) ? 5 : 16); left > 0; --left)
            text += parts[random.below(kinds)];
        texts.push_back(text);
    }
    return texts;
}

Masks masks_of(const Source &source, std::shared_ptr<TokenIndex> index) {
    return Masks(Machine(compile(source)), std::move(index));
}

void check_against_naive(Masks &masks, StateId state) {
    TokenIndex &index = masks.index();
    const Bits mask = masks.mask(state);
    for (TokenId id = 0; id < index.rows(); ++id) {
        bool expected = false;
        if (index.is_end(id))
            expected = masks.accepts(state);
        else if (!index.text(id).empty())
            expected = masks.machine().advance(state, index.text(id)) != kDead;
        if (has_bit(mask, id) == expected && masks.allows(state, id) == expected) continue;
        CAPTURE(id);
        CHECK(has_bit(mask, id) == expected);
        CHECK(masks.allows(state, id) == expected);
    }
    CHECK(has_bit(mask, index.ends()[0]) == masks.accepts(state));
}

}  // namespace

TEST_CASE("masks: equal the result of trying every token, at random states") {
    constexpr uint64_t kSeed = 77;
    const Source kSources[] = {
        {.kind = Source::Kind::AnyJson},
        {.kind = Source::Kind::Schema,
         .text =
             R"({"type":"object","properties":{"name":{"type":"string"},"value":{"type":"number"},"nested":{"type":"array","items":{"type":"string","maxLength":9}}},"required":["name"]})"},
        {.kind = Source::Kind::Schema, .text = R"({"type":"string","minLength":3,"maxLength":14})"},
        {.kind = Source::Kind::Schema, .text = R"({"type":"string","pattern":"^(ab|a)*c?$","maxLength":11})"},
        {.kind = Source::Kind::Schema,
         .text = R"({"type":"array","items":{"type":"integer","minimum":-5,"maximum":500}})"},
        {.kind = Source::Kind::Regex, .text = "[a-z ]{0,20}(12|é)+"},
        {.kind = Source::Kind::Gbnf, .text = "root ::= [^\"\\\\\\x00-\\x1f]{2,8} \"x\""},
        {.kind = Source::Kind::Gbnf,
         .text = "root ::= ([^\"\\\\\\x00-\\x1f] | \"a\" \"b\"){0,6} \"a b\" | \"the\" .*"},
        {.kind = Source::Kind::Choices, .choices = {"the cat", "the dog", "", "12"}},
        // Where plain text is allowed, but not by a repetition of any character.
        {.kind = Source::Kind::Schema,
         .text =
             R"({"type":"object","properties":{"na":{"type":"string"},"é":{"type":"string"}},"additionalProperties":{"type":"string","maxLength":3}})"},
        {.kind = Source::Kind::Schema, .text = R"({"type":"string","pattern":"z$","minLength":3})"},
        {.kind = Source::Kind::Schema, .text = R"({"type":"string","pattern":"z$","maxLength":7})"},
        {.kind = Source::Kind::Schema,
         .text = R"({"type":"string","pattern":"^a","minLength":2,"maxLength":5})"},
        {.kind = Source::Kind::Schema, .text = R"({"type":"string","minLength":2,"maxLength":3})"},
        {.kind = Source::Kind::Schema, .text = R"({"type":"string","pattern":"^[^漢z]{1,4}( [^漢é]*)*$"})"},
        {.kind = Source::Kind::Schema,
         .text =
             R"({"anyOf":[{"type":"string","minLength":2,"maxLength":6},{"const":"aaa aab z"},{"type":"string","pattern":"^a*(漢[字😀]?)*$"}]})"},
        {.kind = Source::Kind::Regex, .text = "a{2}[^\\x00-\\x1f\"\\\\é]*|a[^😀]{3}|b.{3,9}|[^z]{4}"},
    };
    Random words(kSeed);
    const std::vector<TokenId> ends{0};
    const std::shared_ptr<TokenIndex> indices[] = {
        std::make_shared<TokenIndex>(small_vocabulary(), ends),
        std::make_shared<TokenIndex>(random_vocabulary(words), ends)};
    for (size_t number = 0; number < 2 * std::size(kSources); ++number) {
        const Source &source = kSources[number / 2];
        const auto index = indices[number % 2];
        CAPTURE(source.text);
        CAPTURE(number % 2);
        Masks masks = masks_of(source, index);
        for (uint64_t round = 0; round < 6; ++round) {
            CAPTURE(round);
            Random random(kSeed + round);
            StateId state = masks.start();
            for (int step = 0; step < 12; ++step) {
                check_against_naive(masks, state);
                std::vector<TokenId> allowed;
                for (TokenId id = 1; id < index->rows(); ++id)
                    if (has_bit(masks.mask(state), id)) allowed.push_back(id);
                if (allowed.empty()) break;
                // Picks long texts as often as single bytes.
                TokenId next = allowed[random.below(allowed.size())];
                if (random.below(2))
                    next = allowed[allowed.size() - 1 - random.below(std::min<size_t>(allowed.size(), 8))];
                state = masks.advance(state, next);
                REQUIRE(state != kDead);
            }
        }
    }
}

TEST_CASE("masks: an end token is allowed only where the text may end, and nothing after it") {
    const auto index = std::make_shared<TokenIndex>(small_vocabulary(), std::vector<TokenId>{0});
    Masks masks = masks_of({.kind = Source::Kind::Regex, .text = "(ab)+"}, index);
    CHECK(!masks.allows(masks.start(), 0));
    const StateId whole = masks.machine().advance(masks.start(), "ab");
    CHECK(masks.allows(whole, 0));
    const StateId ended = masks.advance(whole, 0);
    CHECK(masks.accepts(ended));
    CHECK(masks.advance(ended, 5) == kDead);
    CHECK(has_bit(masks.mask(ended), 0));
    CHECK(masks.forced(masks.start(), 10) == "ab");
    CHECK(masks.advance(masks.start(), -1) == kDead);
    CHECK(masks.advance(masks.start(), index->rows()) == kDead);
}

TEST_CASE("masks: a token that a grammar names matches as a token, its text does not") {
    const auto index = std::make_shared<TokenIndex>(small_vocabulary(), std::vector<TokenId>{0});
    TokenId think = 0;
    while (index->text(think) != "<think>") ++think;
    Masks masks = masks_of(
        {.kind = Source::Kind::Gbnf, .text = "root ::= <[" + std::to_string(think) + "]> \"a\" | \"ab\""},
        index);
    CHECK(has_bit(masks.mask(masks.start()), think));
    CHECK(masks.advance(masks.start(), think) != kDead);
    CHECK(masks.machine().advance(masks.start(), "<think>") == kDead);
    // Token 1 has no text: only a grammar that names it allows it.
    CHECK(!has_bit(masks.mask(masks.start()), 1));
    Masks any = masks_of(
        {.kind = Source::Kind::Gbnf, .text = "root ::= !<[" + std::to_string(think) + "]> \"a\""}, index);
    CHECK(has_bit(any.mask(any.start()), 1));
    CHECK(!has_bit(any.mask(any.start()), think));
}

TEST_CASE("masks: without tokens for every byte, no token ends inside a character") {
    const auto index = std::make_shared<TokenIndex>(
        std::vector<std::string>{"</s>", "a", "\xc3", "\xa9", "é", "é\xc3"}, std::vector<TokenId>{0});
    Masks masks = masks_of({.kind = Source::Kind::Regex, .text = ".+"}, index);
    const Bits &mask = masks.mask(masks.start());
    CHECK((has_bit(mask, 1) && has_bit(mask, 4)));
    CHECK((!has_bit(mask, 2) && !has_bit(mask, 3) && !has_bit(mask, 5)));
    Masks none = masks_of({.kind = Source::Kind::Regex, .text = "b"}, index);
    CHECK_THROWS_AS(none.mask(none.start()), GrammarLimit);
}

TEST_CASE("masks: valid documents are accepted token by token, whatever the vocabulary and the splits") {
    size_t vocabularies = 0, tokens = 0;
    for (const char *name : {"gpt-2", "llama-spm", "qwen2", "tekken", "phi-3"}) {
        const std::string path = std::string("vocab/") + name + ".gguf";
        if (!testing::has_shared_data(path)) continue;
        ++vocabularies;
        CAPTURE(name);
        const gguf::File file = gguf::File::open(testing::shared_data() / path);
        const text::Tokenizer tokenizer = text::Tokenizer::load(file);
        const auto index = std::make_shared<TokenIndex>(tokenizer, tokenizer.size());
        Random random(vocabularies);
        size_t number = 0;
        for (const Json &entry : Json::parse(testing::read_file("tests/data/grammar/schemas.json"))) {
            if (number++ % 9 != vocabularies) continue;
            const std::string schema = entry["schema"].dump();
            CAPTURE(schema);
            Masks masks = masks_of({.kind = Source::Kind::Schema, .text = schema}, index);
            for (const std::string text : entry["accept"]) {
                CAPTURE(text);
                // Split as the tokenizer does, and as it does after a split at a random place.
                const size_t cut = random.below(text.size() + 1);
                for (const std::string &first : {text, text.substr(0, cut)}) {
                    const text::EncodeOptions how{.add_special = false, .continues = true};
                    std::vector<TokenId> ids = tokenizer.encode(first, how);
                    const std::vector<TokenId> more = tokenizer.encode(text.substr(first.size()), how);
                    ids.insert(ids.end(), more.begin(), more.end());
                    StateId state = masks.start();
                    for (const TokenId id : ids) {
                        CHECK(has_bit(masks.mask(state), id));
                        state = masks.advance(state, id);
                        REQUIRE(state != kDead);
                        ++tokens;
                    }
                    CHECK(masks.accepts(state));
                }
            }
        }
    }
    if (vocabularies == 0) return testing::skip("no real vocabularies beside the checkout");
    CHECK(tokens > 5000);
}
