// The text of the line editor: clusters, words, lines and chips; and how clusters appear.
#include "engine/commands/chat/edit/edit_text.h"

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "engine/commands/chat/edit/cells.h"
#include "engine/text/utf8.h"

using namespace runnel;
using commands::EditText;

namespace {

const std::string kFamily = "\U0001F468\u200D\U0001F469\u200D\U0001F467", kFlag = "\U0001F1E9\U0001F1EA",
                  kAccent = "e\u0301";

EditText text_of(std::string text) {
    EditText edited;
    edited.set(std::move(text));
    return edited;
}

}  // namespace

TEST_CASE("edit text: a backspace removes a whole cluster") {
    for (const std::string &cluster :
         {kFamily, kFlag, kAccent, std::string("\u05D0\u05B8"), std::string("\r")}) {
        CAPTURE(cluster);
        EditText edited = text_of("a" + cluster);
        edited.erase(edited.before(edited.cursor()), edited.cursor());
        CHECK(edited.text() == "a");
    }
    EditText flags = text_of(kFlag + kFlag);
    CHECK(flags.before(flags.cursor()) == kFlag.size());
    CHECK(flags.behind(0) == kFlag.size());
}

TEST_CASE("edit text: clusters have their width, and unprintable ones are replaced") {
    CHECK(commands::text_width(kFamily) == 2);
    CHECK(commands::text_width(kFlag) == 2);
    CHECK(commands::text_width(kAccent) == 1);
    CHECK(commands::text_width("\u5b57\uac00a") == 5);
    CHECK(commands::text_width("\u2764\uFE0F") == 2);
    CHECK(commands::shown_grapheme("\u202E") == "<U+202E>");
    CHECK(commands::shown_grapheme("\u2066") == "<U+2066>");
    CHECK(commands::shown_grapheme("\u2028") == "<U+2028>");
    CHECK(commands::shown_grapheme("\x1b") == "^[");
    CHECK(commands::shown_grapheme("\u0301") == "\u25CC\u0301");
    CHECK(commands::shown_grapheme(kFamily) == kFamily);
    CHECK(commands::clean_text("a\x1b[31m\r\nb\xc2\x9b\x7f\tc\xff") == "a[31m\nb\tc\uFFFD");
    std::string endless = "a";
    for (int i = 0; i < 1000; ++i) endless += "\u0301";
    CHECK(commands::first_grapheme(endless) <= 256 + 4);
}

TEST_CASE("edit text: the cursor finds words and lines") {
    const EditText edited = text_of("one, zw\u00f6lf\n  three");
    CHECK(edited.word_behind(0) == 3);
    CHECK(edited.word_behind(3) == 11);
    CHECK(edited.word_before(edited.text().size()) == edited.text().size() - 5);
    CHECK(edited.word_before(5) == 0);
    CHECK(edited.line_begin(5) == 0);
    CHECK(edited.line_end(5) == 11);
    CHECK(edited.line_begin(12) == 12);
    CHECK(edited.line_end(12) == edited.text().size());
    CHECK(edited.line_begin(0) == 0);
}

TEST_CASE("edit text: a long paste is one piece") {
    std::string lines;
    for (int i = 0; i < 3411; ++i) lines += "x\n";
    EditText edited = text_of("ab");
    edited.set_cursor(1);
    edited.paste(lines + "x");
    REQUIRE(edited.chips().size() == 1);
    CHECK(edited.chips()[0].label == "[pasted 3,412 lines]");
    CHECK(edited.text() == "a" + lines + "xb");
    CHECK(edited.before(edited.cursor()) == 1);
    CHECK(edited.behind(1) == edited.cursor());
    CHECK(edited.line_begin(edited.text().size()) == 0);
    CHECK(edited.line_end(0) == edited.text().size());
    edited.set_cursor(0);
    edited.insert("123");
    CHECK(edited.chips()[0].begin == 4);
    edited.erase(4, edited.behind(4));
    CHECK(edited.text() == "123ab");
    CHECK(edited.chips().empty());
    CHECK(text_of(std::string(2001, 'x')).chips()[0].label == "[pasted 2,001 bytes]");
    CHECK(text_of("three\nshort\nlines").chips().empty());
}

TEST_CASE("edit text: random edits keep the text valid and the cursor on a boundary") {
    const std::vector<std::string> parts = {"a",     " ",      "\n",     "\t",     kFamily,       kFlag,
                                            kAccent, "\u0301", "\u5b57", "\u202E", "\u0628\u064F"};
    for (uint32_t seed = 1; seed <= 200; ++seed) {
        CAPTURE(seed);
        std::mt19937 random(seed);
        EditText edited;
        std::string expected;  // the text by plain insertion and erasure of bytes
        for (int i = 0; i < 120; ++i) {
            const size_t cursor = edited.cursor();
            size_t other = cursor;
            switch (random() % 9) {
                case 0:
                    edited.set_cursor(edited.before(cursor));
                    CHECK(edited.cursor() <= cursor);
                    continue;
                case 1:
                    edited.set_cursor(edited.behind(cursor));
                    CHECK(edited.cursor() >= cursor);
                    continue;
                case 2:
                    other = edited.before(cursor);
                    expected.erase(other, cursor - other);
                    edited.erase(other, cursor);
                    break;
                case 3:
                    other = edited.word_behind(cursor);
                    expected.erase(cursor, other - cursor);
                    edited.erase(cursor, other);
                    break;
                case 4:
                    edited.set_cursor(edited.line_begin(cursor));
                    continue;
                case 5: {
                    const std::string paste(2001, 'p');
                    expected.insert(cursor, paste);
                    edited.paste(paste);
                    break;
                }
                default: {
                    const std::string &part = parts[random() % parts.size()];
                    expected.insert(cursor, part);
                    edited.insert(part);
                }
            }
            REQUIRE(edited.text() == expected);
            REQUIRE(text::is_valid_utf8(edited.text()));
            for (const EditText::Chip &chip : edited.chips()) {
                REQUIRE(edited.text().substr(chip.begin, chip.end - chip.begin) == std::string(2001, 'p'));
                REQUIRE((edited.cursor() <= chip.begin || edited.cursor() >= chip.end));
            }
        }
    }
}
