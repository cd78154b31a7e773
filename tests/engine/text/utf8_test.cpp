#include "engine/text/utf8.h"

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

using namespace runnel;
using text::TerminalFilter;
using text::Utf8Stream;

namespace {

const std::string kBad = "\xEF\xBF\xBD";  // U+FFFD

// Pushes the text in pieces, cut at the given positions.
template <class Stream>
std::string feed(const std::string &bytes, const std::vector<size_t> &cuts) {
    Stream stream;
    std::string result;
    size_t begin = 0;
    for (const size_t cut : cuts) {
        result += stream.push(std::string_view(bytes).substr(begin, cut - begin));
        begin = cut;
    }
    result += stream.push(std::string_view(bytes).substr(begin));
    return result + stream.flush();
}

// The result must not depend on the splits: none, one at every position, all positions at once.
template <class Stream>
void check_all_cuts(const std::string &bytes, const std::string &expected) {
    CAPTURE(bytes);
    CHECK(feed<Stream>(bytes, {}) == expected);
    std::vector<size_t> everywhere;
    for (size_t cut = 0; cut <= bytes.size(); ++cut) {
        CAPTURE(cut);
        CHECK(feed<Stream>(bytes, {cut}) == expected);
        everywhere.push_back(cut);
    }
    CHECK(feed<Stream>(bytes, everywhere) == expected);
}

std::string random_bytes(std::mt19937 &random, size_t count) {
    // Bytes that matter in UTF-8 and in escape sequences are more frequent.
    static const unsigned char interesting[] = {0x00, 0x1B, 0x7F, 0x80, 0x9B, 0xBF, 0xC0, 0xC1,
                                                0xC2, 0xDF, 0xE0, 0xED, 0xEF, 0xF0, 0xF4, 0xF5,
                                                0xFF, '[',  ']',  'm',  '\n', '\t', '\r', 0xA0};
    std::string bytes;
    for (size_t i = 0; i < count; ++i)
        bytes +=
            static_cast<char>(random() % 2 ? interesting[random() % sizeof interesting] : random() % 256);
    return bytes;
}

}  // namespace

TEST_CASE("a UTF-8 stream returns whole characters") {
    check_all_cuts<Utf8Stream>("", "");
    check_all_cuts<Utf8Stream>("plain\n\ttext", "plain\n\ttext");
    check_all_cuts<Utf8Stream>("\u00E9 \u4E2D \U0001F600 \U0010FFFF \uFFFD",
                               "\u00E9 \u4E2D \U0001F600 \U0010FFFF \uFFFD");

    Utf8Stream stream;
    CHECK(stream.push("\xF0\x9F") == "");
    CHECK(stream.push("\x98") == "");
    CHECK(stream.push("\x80!") == "\U0001F600!");
    CHECK(stream.flush() == "");
}

TEST_CASE("a UTF-8 stream immediately replaces bytes that can no longer become valid") {
    check_all_cuts<Utf8Stream>("a\x80z", "a" + kBad + "z");
    check_all_cuts<Utf8Stream>("\xC0\x80", kBad + kBad);                        // overlong
    check_all_cuts<Utf8Stream>("\xE0\x80\x80", kBad + kBad + kBad);             // overlong
    check_all_cuts<Utf8Stream>("\xED\xA0\x80", kBad + kBad + kBad);             // surrogate
    check_all_cuts<Utf8Stream>("\xF4\x90\x80\x80", kBad + kBad + kBad + kBad);  // above U+10FFFF
    check_all_cuts<Utf8Stream>("\xF0\x9F\x98X", kBad + "X");  // a maximal subpart is one U+FFFD
    check_all_cuts<Utf8Stream>("\xE4\xB8\xE4\xB8\xAD", kBad + "\u4E2D");
    check_all_cuts<Utf8Stream>("end\xF0\x9F\x98", "end" + kBad);  // cut off at the end

    Utf8Stream stream;
    CHECK(stream.push("\xE4\xB8") == "");
    CHECK(stream.push("X") == kBad + "X");
    CHECK(stream.push("\xFF") == kBad);
    CHECK(stream.push("\xC3") == "");
    CHECK(stream.flush() == kBad);
    CHECK(stream.flush() == "");
    CHECK(stream.push("\xA9") == kBad);
}

TEST_CASE("a UTF-8 stream gives the same text however the bytes are split, and always valid text") {
    std::mt19937 random(1);
    for (int round = 0; round < 300; ++round) {
        const std::string bytes = random_bytes(random, random() % 24);
        Utf8Stream whole;
        const std::string pushed = whole.push(bytes);
        CHECK(text::is_valid_utf8(pushed));
        check_all_cuts<Utf8Stream>(bytes, pushed + whole.flush());
        if (text::is_valid_utf8(bytes)) CHECK(pushed == bytes);
    }
}

TEST_CASE("valid and invalid UTF-8 are distinguished") {
    CHECK(text::is_valid_utf8(""));
    CHECK(text::is_valid_utf8(std::string("12345678901234567\0x", 19)));
    CHECK(text::is_valid_utf8("1234567\u00E9\u4E2D\U0001F600"));
    CHECK_FALSE(text::is_valid_utf8("1234567\xC3"));
    CHECK_FALSE(text::is_valid_utf8("12345678\xC3"));
    CHECK_FALSE(text::is_valid_utf8("12345678\xED\xA0\x80"));
    CHECK_FALSE(text::is_valid_utf8("\xF5\x80\x80\x80"));
}

TEST_CASE("text for a terminal contains no control sequences") {
    check_all_cuts<TerminalFilter>("tab\tand\nnewline \u4E2D\U0001F600",
                                   "tab\tand\nnewline \u4E2D\U0001F600");
    check_all_cuts<TerminalFilter>("\x1B[31mred\x1B[0m", "\\x1B[31mred\\x1B[0m");
    check_all_cuts<TerminalFilter>("\x1B]0;title\x07", "\\x1B]0;title\\x07");
    check_all_cuts<TerminalFilter>("back\b\rreturn\x7F", "back\\x08\\x0Dreturn\\x7F");
    check_all_cuts<TerminalFilter>(std::string("\0", 1), "\\x00");
    check_all_cuts<TerminalFilter>(
        "\xC2\x9B"
        "31m",
        "\\x9B"
        "31m");  // CSI as a UTF-8 character
    check_all_cuts<TerminalFilter>(
        "\x9B"
        "31m",
        kBad + "31m");  // CSI as a byte
    check_all_cuts<TerminalFilter>("\xC2\x80\xC2\x9F\xC2\xA0", "\\x80\\x9F\xC2\xA0");
    check_all_cuts<TerminalFilter>("\u202E", "\u202E");
}

TEST_CASE("no byte of a control sequence passes, for any input") {
    std::mt19937 random(2);
    for (int round = 0; round < 300; ++round) {
        const std::string bytes = random_bytes(random, random() % 24);
        TerminalFilter whole;
        std::string safe = whole.push(bytes);
        safe += whole.flush();
        check_all_cuts<TerminalFilter>(bytes, safe);
        CHECK(text::is_valid_utf8(safe));
        for (std::string_view rest = safe; !rest.empty();) {
            const text::Utf8Char c = text::first_char(rest);
            const bool passes = c.code_point == '\n' || c.code_point == '\t' ||
                                (c.code_point >= 0x20 && c.code_point < 0x7F) || c.code_point >= 0xA0;
            CHECK(passes);
            rest.remove_prefix(c.bytes);
        }
        CHECK(text::printable_for_terminal(safe) == safe);
    }
}
