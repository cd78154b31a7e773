// Decoding of bytes into keys: every sequence, in any pieces, and hostile bytes.
#include "engine/commands/chat/edit/keys.h"

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "engine/commands/chat/edit/cells.h"
#include "engine/text/utf8.h"

using namespace runnel;
using commands::Key;
using commands::KeyDecoder;

namespace {

std::vector<Key> keys_of(std::string_view bytes) {
    KeyDecoder decoder;
    decoder.push(bytes);
    std::vector<Key> keys;
    while (auto key = decoder.next()) keys.push_back(*key);
    return keys;
}

Key only(std::string_view bytes) {
    const std::vector<Key> keys = keys_of(bytes);
    REQUIRE(keys.size() == 1);
    return keys[0];
}

// Joins neighboring texts, however many keys they came in.
std::vector<Key> joined(const std::vector<Key> &keys) {
    std::vector<Key> all;
    for (const Key &key : keys) {
        if (key.name == Key::Text && !all.empty() && all.back().name == Key::Text)
            all.back().text += key.text;
        else
            all.push_back(key);
    }
    return all;
}

}  // namespace

TEST_CASE("keys: the sequences of today's terminals are recognized") {
    for (const char *up : {"\x1b[A", "\x1bOA", "\x1b[1;2A"}) CHECK(only(up) == Key{Key::Up});
    CHECK(only("\x1b[D") == Key{Key::Left});
    for (const char *word : {"\x1b[1;5D", "\x1b[1;3D",
                             "\x1b"
                             "b"})
        CHECK(only(word) == Key{Key::WordLeft});
    for (const char *home : {"\x1b[H", "\x1bOH", "\x1b[1~", "\x1b[7~"}) CHECK(only(home) == Key{Key::Home});
    for (const char *end : {"\x1b[F", "\x1bOF", "\x1b[4~", "\x1b[8~"}) CHECK(only(end) == Key{Key::End});
    CHECK(only("\x1b[3~") == Key{Key::Delete});
    CHECK(only("\x1b[3;5~") == Key{Key::EraseWordRight});
    CHECK(only("\x1b\x7f") == Key{Key::EraseWordLeft});
    for (const char *line : {"\n", "\x1b\r", "\x1b\n", "\x1b[13;2u", "\x1b[27;2;13~"})
        CHECK(only(line) == Key{Key::Newline});
    for (const char *enter : {"\r", "\x1bOM"}) CHECK(only(enter) == Key{Key::Enter});
    for (const char *back : {"\x7f", "\b"}) CHECK(only(back) == Key{Key::Backspace});
    CHECK(only("\x03") == Key{Key::Control, "c"});
    CHECK(only("\t") == Key{Key::Tab});
    for (const char *unknown : {"\x1b[15~", "\x1b[[A", "\x1bOP", "\x1b[I", "\x1b[<0;1;1M", "\x1bx"})
        CHECK(only(unknown) == Key{Key::Unknown});
    CHECK(only("gr\u00fc\u00df") == Key{Key::Text, "gr\u00fc\u00df"});
}

TEST_CASE("keys: a lone ESC becomes a key after a pause; an incomplete character never appears") {
    KeyDecoder decoder;
    decoder.push("\x1b");
    CHECK(!decoder.next());
    CHECK(decoder.waits());
    CHECK(decoder.expire() == Key{Key::Escape});
    CHECK(!decoder.waits());
    decoder.push("\x1b\x1b[A");
    CHECK(decoder.next() == Key{Key::Escape});
    CHECK(decoder.next() == Key{Key::Up});
    decoder.push("\xf0\x9f\x98");
    CHECK(!decoder.next());
    decoder.push("\x80");
    CHECK(decoder.next() == Key{Key::Text, "\U0001F600"});
    CHECK(only("a\xff"
               "b") == Key{Key::Text,
                           "a\uFFFD"
                           "b"});
    CHECK(only("\xc2\x9b") == Key{Key::Unknown});  // a C1 control
}

TEST_CASE("keys: a paste is one cleaned key; only a typed Ctrl-C after it ends it early") {
    CHECK(only("\x1b[200~a\rb\r\nc\x07\x1b[A\td\r\r\x1b[201~") == Key{Key::Paste, "a\nb\nc[A\td"});
    KeyDecoder decoder;
    decoder.push("\x1b[200~one\x03/exit\r");
    CHECK(!decoder.next());
    CHECK(!decoder.expire());
    decoder.push("\x1b[201~");
    CHECK(decoder.next() == Key{Key::Paste, "one/exit"});
    decoder.push("\x1b[200~lost\x03");
    CHECK(!decoder.next());
    CHECK(decoder.expire() == Key{Key::Control, "c"});
    decoder.push("x");
    CHECK(decoder.next() == Key{Key::Text, "x"});
    std::string large(200'000, 'x');
    for (size_t i = 60; i < large.size(); i += 61) large[i] = '\r';
    KeyDecoder in_pieces;
    in_pieces.push("\x1b[200~");
    for (size_t i = 0; i < large.size(); i += 4096) {
        CHECK(!in_pieces.next());
        in_pieces.push(std::string_view(large).substr(i, 4096));
    }
    in_pieces.push("\x1b[201~");
    CHECK(in_pieces.next()->text.size() == large.size());
}

TEST_CASE("keys: the result does not depend on how the bytes are cut") {
    const std::vector<std::string> parts = {"a",           "\u00e9",
                                            "\u5b57",      "\U0001F468\u200D\U0001F469",
                                            "\x1b[A",      "\x1b[1;5C",
                                            "\x1bOF",      "\x1b[3~",
                                            "\x1b\r",      "\r",
                                            "\n",          "\x7f",
                                            "\x03",        "\x1b[200~p\r\x03q\x1b[201~",
                                            "\x1b[99;99~", "\xff"};
    for (uint32_t seed = 1; seed <= 300; ++seed) {
        CAPTURE(seed);
        std::mt19937 random(seed);
        std::string bytes;
        for (int i = 0; i < 20; ++i) bytes += parts[random() % parts.size()];
        KeyDecoder decoder;
        std::vector<Key> keys;
        for (size_t at = 0; at < bytes.size();) {
            const size_t count = 1 + random() % 5;
            decoder.push(std::string_view(bytes).substr(at, count));
            at += count;
            while (auto key = decoder.next()) keys.push_back(*key);
        }
        CHECK(joined(keys) == joined(keys_of(bytes)));
    }
}

TEST_CASE("keys: any bytes become keys whose text is printable") {
    for (uint32_t seed = 1; seed <= 300; ++seed) {
        CAPTURE(seed);
        std::mt19937 random(seed);
        KeyDecoder decoder;
        std::string bytes;
        const bool escapes = seed % 2 == 0;
        for (int i = 0; i < 400; ++i)
            bytes += escapes && random() % 4 == 0 ? "\x1b[" : std::string(1, static_cast<char>(random()));
        decoder.push(bytes);
        size_t keys = 0;
        for (bool more = true; more; ++keys) {
            REQUIRE(keys < 2 * bytes.size());
            auto key = decoder.next();
            if (!key) key = decoder.expire();
            more = key.has_value();
            if (!key || (key->name != Key::Text && key->name != Key::Paste)) continue;
            CHECK(text::is_valid_utf8(key->text));
            CHECK(commands::clean_text(key->text) == key->text);
        }
    }
}
