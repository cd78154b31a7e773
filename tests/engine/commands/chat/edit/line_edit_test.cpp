// What keys do to the text of the line editor.
#include "engine/commands/chat/edit/line_edit.h"

#include <doctest/doctest.h>

#include <random>
#include <string>

#include "engine/text/utf8.h"

using namespace runnel::commands;
using Action = LineEdit::Action;

namespace {

constexpr int kColumns = 80;

// Types bytes and returns the action of the last key.
Action type(LineEdit &edit, std::string_view bytes, int columns = kColumns) {
    KeyDecoder keys;
    keys.push(bytes);
    Action last = Action::None;
    while (auto key = keys.next()) last = edit.press(*key, columns);
    if (auto key = keys.expire()) last = edit.press(*key, columns);
    return last;
}

std::string text_after(std::string_view bytes, History history = History()) {
    LineEdit edit(history, ">>> ", true);
    type(edit, bytes);
    return edit.text().text();
}

}  // namespace

TEST_CASE("line edit: keys move, erase, kill and yank") {
    CHECK(text_after("one two\x1b[D\x1b[D!") == "one t!wo");
    CHECK(text_after("one two\x01X\x05Y") == "Xone twoY");
    CHECK(text_after("one two\x17three") == "one three");
    CHECK(text_after("one two\x15\x19\x19") == "one twoone two");
    CHECK(text_after("one two\x01\x0b") == "");
    CHECK(text_after("one two\x01\x1b[3~\x1b[3~") == "e two");
    CHECK(text_after("one two\x1b[1;5D\x1b[1;5D\x1b"
                     "d") == " two");
    CHECK(text_after("a\x7f\x7f\x7f"
                     "b") == "b");
    History none;
    LineEdit edit(none, ">>> ", true);
    CHECK(type(edit, "\x04") == Action::End);
    CHECK(type(edit, "x\x04") == Action::None);
    CHECK(type(edit, "\x03") == Action::GiveUp);
    CHECK(type(edit, "\x1a") == Action::Suspend);
    CHECK(type(edit, "\x07") == Action::Editor);
    CHECK(type(edit, "\t") == Action::Complete);
    CHECK(type(edit, "\x0c") == Action::Redraw);
}

TEST_CASE("line edit: three keys insert a newline") {
    for (const char *newline : {"\x1b\r", "\n", "\\\r"}) {
        CAPTURE(newline);
        History none;
        LineEdit edit(none, ">>> ", true);
        CHECK(type(edit, "one" + std::string(newline)) == Action::None);
        CHECK(type(edit, "two\r") == Action::Submit);
        CHECK(edit.message() == "one\ntwo");
    }
    History none;
    LineEdit pasted(none, ">>> ", true);
    CHECK(type(pasted, "\x1b[200~ends with \\\x1b[201~\r") == Action::Submit);
    CHECK(pasted.message() == "ends with \\");
}

TEST_CASE(
    "line edit: three quotes typed alone on the first line begin a block; pasted or with text they do not") {
    const auto message = [](std::string_view bytes) -> std::optional<std::string> {
        History none;
        LineEdit edit(none, ">>> ", true);
        return type(edit, bytes) == Action::Submit ? std::optional(edit.message()) : std::nullopt;
    };
    CHECK(message("\"\"\"\r") == std::nullopt);
    CHECK(message("\"\"\"\rone\r\rtwo\r\"\"\"\r") == "one\n\ntwo");
    CHECK(message("\"\"\"\r\"\"\"\r") == "");
    CHECK(message("\"\"\"one\r") == "\"\"\"one");
    CHECK(message("say \"\"\"\r") == "say \"\"\"");
    CHECK(message("\x1b[200~\"\"\"\rdocs\r\"\"\"\rdef f(): pass\x1b[201~\r") ==
          "\"\"\"\ndocs\n\"\"\"\ndef f(): pass");
    CHECK(message("\x1b[200~\"\"\"\rdocs\r\"\"\"\x1b[201~\r") == "\"\"\"\ndocs\n\"\"\"");
    History none;
    LineEdit question(none, "? ", false);
    CHECK(type(question, "\"\"\"\r") == Action::Submit);
}

TEST_CASE("line edit: Up and Down move within the text first, then through the history") {
    const History history({"first", "second\nof two lines"});
    CHECK(text_after("\x1b[A", history) == "second\nof two lines");
    CHECK(text_after("\x1b[A\x1b[A", history) == "second\nof two lines");
    CHECK(text_after("\x1b[A\x1b[A\x1b[A", history) == "first");
    CHECK(text_after("draft\x1b[A\x1b[A\x1b[A\x1b[B\x1b[B", history) == "draft");
    CHECK(text_after("\x1b[Aedited\x1b[A\x1b[A\x1b[B", history) == "second\nof two linesedited");
    CHECK(text_after("one\ntwo\x1b[AX", history) == "oneX\ntwo");
    CHECK(text_after("one\ntwo\x1b[A\x1b[BX", history) == "one\ntwoX");
    // Rows of a wrapped line count.
    History none({"old"});
    LineEdit edit(none, ">>> ", true);
    type(edit, "0123456789abcdefghij", 20);
    type(edit, "\x1b[AX", 20);
    CHECK(edit.text().text() == "X0123456789abcdefghij");
}

TEST_CASE("line edit: Ctrl-R searches backwards") {
    const History history({"alpha one", "beta", "alpha two"});
    CHECK(text_after("\x12"
                     "alp",
                     history) == "alpha two");
    CHECK(text_after("\x12"
                     "alp\x12",
                     history) == "alpha one");
    CHECK(text_after("\x12"
                     "alp\x12\x12",
                     history) == "alpha one");
    CHECK(text_after("\x12"
                     "bet\x1b[D!",
                     history) == "bet!a");
    CHECK(text_after("draft\x12"
                     "alp\x03",
                     history) == "draft");
    CHECK(text_after("\x12"
                     "alphax\x7f",
                     history) == "alpha two");
    History same = history;
    LineEdit edit(same, ">>> ", true);
    type(edit,
         "\x12"
         "bet");
    CHECK(edit.prompt() == "(search: bet) ");
    type(edit, "zzz");
    CHECK(edit.prompt() == "(not found: betzzz) ");
    CHECK(type(edit, "\r") == Action::Submit);
    CHECK(edit.message() == "beta");
}

TEST_CASE("line edit: the history keeps the newest lines, without repetitions") {
    History history({}, 3);
    for (const char *line : {"a", "b", "b", "c", "d"}) history.add(line);
    REQUIRE(history.size() == 3);
    CHECK(history.line(0) == "b");
    CHECK(history.line(2) == "d");
}

TEST_CASE("line edit: random keys keep the text valid") {
    for (uint32_t seed = 1; seed <= 200; ++seed) {
        CAPTURE(seed);
        std::mt19937 random(seed);
        History history({"one", "two\nlines\nhere", "\u5b57\u5b57\u5b57"});
        LineEdit edit(history, ">>> ", true);
        for (int i = 0; i < 150; ++i) {
            Key key{static_cast<Key::Name>(random() % (Key::Unknown + 1))};
            if (key.name == Key::Text) key.text = random() % 2 ? "x" : "\U0001F1E9\U0001F1EA";
            if (key.name == Key::Paste) key.text = random() % 2 ? std::string(3000, 'p') : "a\nb\u0301";
            if (key.name == Key::Control) key.text = std::string(1, static_cast<char>('a' + random() % 26));
            edit.press(key, 5 + static_cast<int>(random() % 40));
            REQUIRE(edit.text().cursor() <= edit.text().text().size());
            REQUIRE(runnel::text::is_valid_utf8(edit.text().text()));
            REQUIRE(lay_out(edit.prompt(), edit.text(), 20).rows.size() >= 1);
        }
    }
}
