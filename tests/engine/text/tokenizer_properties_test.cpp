// Properties of real vocabularies: encoding is lossless and independent of repetitions and lengths of words,
// and decoding can be streamed.
#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "engine/text/normalize.h"
#include "engine/text/tokenizer.h"
#include "engine/text/utf8.h"
#include "tests/support/data.h"
#include "tests/support/demo_model.h"
#include "tests/support/skip.h"

using namespace runnel;
using text::TokenId;
using text::Tokenizer;

namespace {

constexpr text::EncodeOptions kPlain{.add_special = false};

void append_utf8(std::string &text, uint32_t c) {
    const auto add = [&](uint32_t byte) { text += static_cast<char>(byte); };
    if (c < 0x80) {
        add(c);
    } else if (c < 0x800) {
        add(0xC0 | c >> 6), add(0x80 | (c & 63));
    } else if (c < 0x10000) {
        add(0xE0 | c >> 12), add(0x80 | (c >> 6 & 63)), add(0x80 | (c & 63));
    } else {
        add(0xF0 | c >> 18), add(0x80 | (c >> 12 & 63)), add(0x80 | (c >> 6 & 63)), add(0x80 | (c & 63));
    }
}

uint32_t random_code_point(std::mt19937 &random) {
    const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
    switch (below(8)) {
        case 0:
            return ' ';
        case 1:
            return "\n\t\r'.,-0123"[below(11)];
        case 2:
            return 0x4E00 + below(0x5000);
        case 3:
            return 0x1F300 + below(0x400);
        case 4:
            return below(0xD800);
        case 5:
            return 0xE000 + below(0x102000);
        default:
            return 'a' + below(26);
    }
}

std::string random_unicode(std::mt19937 &random, size_t characters) {
    std::string text;
    for (size_t i = 0; i < characters; ++i) {
        const uint32_t c = random_code_point(random);
        for (size_t repeat = random() % 10 ? 1 : random() % 40; repeat-- > 0;) append_utf8(text, c);
    }
    return text;
}

std::string random_bytes(std::mt19937 &random, size_t count) {
    std::string bytes;
    for (size_t i = 0; i < count; ++i) bytes += static_cast<char>(random());
    return bytes;
}

template <class Check>
void for_each_vocabulary(Check check) {
    check(Tokenizer::load(gguf::File::open(testing::demo_model())));
    // The vocabularies that have tokens for all 256 bytes.
    for (const std::string name : {"llama-spm", "gemma3", "gpt-2", "llama-bpe", "qwen2", "tekken"}) {
        if (!testing::has_shared_data("vocab/" + name + ".gguf")) {
            testing::skip("no vocabulary " + name);
            continue;
        }
        CAPTURE(name);
        const auto file = gguf::File::open(testing::shared_data() / "vocab" / (name + ".gguf"));
        check(Tokenizer::load(file));
    }
}

}  // namespace

TEST_CASE("decoding what was encoded gives the same bytes") {
    for_each_vocabulary([](const Tokenizer &tokenizer) {
        std::mt19937 random(4);
        // Qwen's tokenizer normalizes text to NFC.
        const auto kept = [&](const std::string &text) {
            return tokenizer.model_name() == "gpt2/qwen2" ? text::to_nfc(text) : text;
        };
        for (int round = 0; round < 60; ++round) {
            CAPTURE(round);
            const std::string unicode = random_unicode(random, random() % 80);
            CHECK(tokenizer.decode(tokenizer.encode(unicode, kPlain)) == kept(unicode));
            const std::string bytes = random_bytes(random, random() % 200);
            CHECK(tokenizer.decode(tokenizer.encode(bytes, kPlain)) == kept(bytes));
            CHECK(tokenizer.decode(tokenizer.encode(unicode + bytes)) == kept(unicode + bytes));
        }
    });
}

TEST_CASE("streaming the tokens one by one gives the same text") {
    for_each_vocabulary([](const Tokenizer &tokenizer) {
        std::mt19937 random(5);
        for (int round = 0; round < 20; ++round) {
            CAPTURE(round);
            const std::string unicode = random_unicode(random, 60);
            const auto ids = tokenizer.encode(unicode, {.add_special = false, .continues = true});
            text::Utf8Stream stream;
            std::string shown;
            size_t streamed = 0;
            for (const TokenId id : ids) {
                const std::string bytes = tokenizer.decode(id);
                streamed += bytes.size();
                shown += stream.push(bytes);
                // Text that was output is never taken back.
                CHECK(unicode.starts_with(shown));
                CHECK(shown.size() + 3 >= streamed);
            }
            shown += stream.flush();
            CHECK(shown == unicode);
        }
    });
}

TEST_CASE("a text's encoding does not depend on words seen before it") {
    // Words are cached within a call, so encoding lines one by one must equal encoding them together.
    for_each_vocabulary([](const Tokenizer &tokenizer) {
        std::mt19937 random(6);
        const char *const words[] = {"the ", "The ", "them ", "a ", "12 ", "don't ", "\u4E2D\u6587 ", "x1 "};
        std::vector<TokenId> one_by_one;
        std::string all;
        for (int line = 0; line < 200; ++line) {
            std::string text = "\n";
            for (int word = 0; word < 10; ++word) text += words[random() % 8];
            text.back() = '.';
            const auto ids = tokenizer.encode(text, {.add_special = false, .continues = true});
            one_by_one.insert(one_by_one.end(), ids.begin(), ids.end());
            all += text;
        }
        CHECK(tokenizer.decode(one_by_one) == all);
        const auto together = tokenizer.encode(all, {.add_special = false, .continues = true});
        CHECK(tokenizer.decode(together) == all);
        CHECK(together.size() <= one_by_one.size());
        CHECK(tokenizer.encode(all + all, {.add_special = false, .continues = true}).size() <=
              2 * together.size());
    });
}

TEST_CASE("long words are merged like short ones") {
    // Long words use another code path of the merge. A word must encode like its parts if no piece
    // can join them: \x01 is such a separator, because no vocabulary has a piece with it and another
    // byte.
    for_each_vocabulary([](const Tokenizer &tokenizer) {
        std::mt19937 random(7);
        const text::EncodeOptions options{.add_special = false, .continues = true};
        std::string word;
        std::vector<TokenId> parts;
        while (word.size() < 20000) {
            std::string part(1, '\x01');
            for (size_t letters = random() % 300; letters-- > 0;) part += "abcdefghtheing"[random() % 14];
            const auto ids = tokenizer.encode(part, options);
            parts.insert(parts.end(), ids.begin(), ids.end());
            word += part;
        }
        CHECK(tokenizer.encode(word, options) == parts);
    });
}
