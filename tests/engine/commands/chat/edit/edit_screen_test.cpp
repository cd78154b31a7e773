// What the line editor draws, on a terminal in memory.
#include "engine/commands/chat/edit/edit_screen.h"

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "engine/commands/chat/edit/cells.h"
#include "tests/support/terminal_model.h"

using namespace runnel;
using commands::EditLayout;
using commands::EditScreen;
using commands::EditText;
using testing::TerminalModel;

namespace {

EditText text_of(std::string text) {
    EditText edited;
    edited.set(std::move(text));
    return edited;
}

std::string trimmed(std::string text) {
    while (text.ends_with(' ')) text.pop_back();
    return text;
}

// Checks that the cursor and its row are as laid out and, if all rows fit into the window of `height` rows, that the
// screen ends with them.
void check_shown(const TerminalModel &terminal, const EditLayout &layout, int height) {
    const std::vector<std::string> lines = terminal.lines();
    REQUIRE(terminal.row() < lines.size());
    CHECK(trimmed(lines[terminal.row()]) == trimmed(layout.rows[layout.cursor_row].shown));
    CHECK(terminal.column() == layout.cursor_column);
    CHECK(terminal.unknown() == 0);
    CHECK(terminal.wraps());
    if (layout.rows.size() > static_cast<size_t>(height)) return;
    REQUIRE(lines.size() >= layout.rows.size());
    for (size_t i = 0; i < layout.rows.size(); ++i)
        CHECK(trimmed(lines[lines.size() - layout.rows.size() + i]) == trimmed(layout.rows[i].shown));
}

}  // namespace

TEST_CASE("edit screen: long lines wrap, further lines are marked, wide characters stay whole") {
    EditText edited = text_of("0123456789abcdefXY\nz");
    EditLayout layout = commands::lay_out(">>> ", edited, 20);
    REQUIRE(layout.rows.size() == 3);
    CHECK(layout.rows[0].shown == ">>> 0123456789abcdef");
    CHECK(layout.rows[1].shown == "XY");
    CHECK(layout.rows[2].shown == "... z");
    CHECK(layout.cursor_row == 2);
    CHECK(layout.cursor_column == 5);
    CHECK(layout.offset_at(1, 1) == 17);
    CHECK(layout.offset_at(0, 100) == 15);
    layout = commands::lay_out(">>> ", text_of("0123456789abcde\u5b57"), 20);
    REQUIRE(layout.rows.size() == 2);
    CHECK(layout.rows[0].width == 19);
    CHECK(layout.rows[1].shown == "\u5b57");
    // After a full row, the cursor is on the next one.
    layout = commands::lay_out(">>> ", text_of("0123456789abcdef"), 20);
    CHECK(layout.cursor_row == 1);
    CHECK(layout.cursor_column == 0);
    CHECK(commands::lay_out(">>> ", text_of("a\tb"), 40).rows[0].shown == ">>> a   b");
    CHECK(commands::lay_out(">>> ", text_of("a\u202Eb"), 40).rows[0].shown == ">>> a<U+202E>b");
    CHECK(commands::lay_out(">>> ", text_of("abc"), 10).rows[0].shown == "abc");
    CHECK(commands::lay_out(">>> ", text_of(std::string(200'000, 'x')), 40).rows[0].shown ==
          ">>> [pasted 200,000 bytes]");
}

TEST_CASE("edit screen: what is drawn after random edits is the text, and what stands above remains") {
    const std::vector<std::string> parts = {
        "a",      "word ", "\n",     "\t",     "\u5b57\u5b57",           "e\u0301",
        "\u202E", "\x01",  "\u05D0", "\u0628", "long long line of text "};
    for (uint32_t seed = 1; seed <= 150; ++seed) {
        CAPTURE(seed);
        std::mt19937 random(seed);
        const int columns = 6 + static_cast<int>(random() % 40), rows = 1 + static_cast<int>(random() % 12);
        CAPTURE(columns);
        CAPTURE(rows);
        TerminalModel terminal(columns, rows);
        terminal.feed("above\n");
        EditText edited;
        EditScreen screen;
        bool fits = true;  // false: the beginning was scrolled away
        for (int i = 0; i < 40; ++i) {
            if (random() % 3 == 0)
                edited.set_cursor(edited.before(edited.cursor()));
            else if (random() % 5 == 0)
                edited.erase(edited.before(edited.cursor()), edited.cursor());
            else
                edited.insert(parts[random() % parts.size()]);
            const EditLayout layout = commands::lay_out(">>> ", edited, columns);
            for (const EditLayout::Row &row : layout.rows) REQUIRE(row.width <= std::max(columns, 2));
            terminal.feed(screen.paint(layout, {columns, rows}));
            check_shown(terminal, layout, rows);
            fits = fits && layout.rows.size() < static_cast<size_t>(rows);
            if (fits) CHECK(terminal.text().starts_with("above\n>>>") == (columns >= 14));
        }
        const EditLayout layout = commands::lay_out(">>> ", edited, columns);
        terminal.feed(screen.finish(layout) + "below");
        const std::vector<std::string> lines = terminal.lines();
        CHECK(lines.back() == std::string("below").substr(0, lines.back().size()));
    }
}

TEST_CASE("edit screen: another width redraws the text in its place") {
    for (uint32_t seed = 1; seed <= 150; ++seed) {
        CAPTURE(seed);
        std::mt19937 random(seed);
        const int rows = 30;
        int columns = 40;
        TerminalModel terminal(columns, rows);
        terminal.feed("above\n");
        EditText edited;
        EditScreen screen;
        for (int i = 0; i < 15; ++i) {
            edited.insert(random() % 4 == 0 ? "\n" : "some words to fill the rows ");
            for (auto left = random() % 30; left > 0; --left)
                edited.set_cursor(edited.before(edited.cursor()));
            terminal.feed(screen.paint(commands::lay_out(">>> ", edited, columns), {columns, rows}));
            columns = 14 + static_cast<int>(random() % 60);
            CAPTURE(columns);
            terminal.resize(columns, rows);
            screen.resized(columns);
            const EditLayout layout = commands::lay_out(">>> ", edited, columns);
            if (layout.rows.size() >= 14) break;
            terminal.feed(screen.paint(layout, {columns, rows}));
            check_shown(terminal, layout, rows);
            CHECK(terminal.text().starts_with("above\n>>>"));
        }
    }
}

TEST_CASE("edit screen: characters that the terminal shows in another width do not move other rows") {
    // The terminal model gives a cluster of joined emoji the cells of all its parts.
    std::string families;
    for (int i = 0; i < 30; ++i) families += "\U0001F468\u200D\U0001F469\u200D\U0001F467";
    const EditText edited = text_of("first\n" + families + "\nlast");
    TerminalModel terminal(40, 20);
    EditScreen screen;
    for (int i = 0; i < 3; ++i) terminal.feed(screen.paint(commands::lay_out(">>> ", edited, 40), {40, 20}));
    const std::vector<std::string> lines = terminal.lines();
    CHECK(lines.front() == ">>> first");
    CHECK(lines.back() == "... last");
    CHECK(lines.size() == commands::lay_out(">>> ", edited, 40).rows.size());
    CHECK(terminal.column() == 8);
}

TEST_CASE("edit screen: a text longer than the screen shows the rows around the cursor") {
    std::string all = "row 0";
    for (int i = 1; i < 9; ++i) all += "\nrow " + std::to_string(i);
    EditText edited = text_of(all);
    TerminalModel terminal(20, 4);
    EditScreen screen;
    const auto paint = [&] { terminal.feed(screen.paint(commands::lay_out(">>> ", edited, 20), {20, 4})); };
    paint();
    CHECK(terminal.text() == "... row 5\n... row 6\n... row 7\n... row 8\n");
    edited.set_cursor(0);
    paint();
    CHECK(terminal.text() == ">>> row 0\n... row 1\n... row 2\n... row 3\n");
    terminal.feed(screen.finish(commands::lay_out(">>> ", edited, 20)));
    CHECK(terminal.lines().size() == 10);
}
