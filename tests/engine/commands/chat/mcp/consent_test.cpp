#include "engine/commands/chat/mcp/consent.h"

#include <doctest/doctest.h>

#include <sstream>

#include "engine/commands/chat/edit/cells.h"

using namespace runnel::commands;
using namespace runnel::commands::mcp;

TEST_CASE("mcp: the text of a call shows invisible characters, and counts blanks") {
    CHECK(visible("{\"a\": \"\u00e9\u4e2d\"}") == "{\"a\": \"\u00e9\u4e2d\"}");
    CHECK(visible("a  b\n \tc\nd") == "a<2 blanks>b<3 blanks>c<U+000A>d");
    CHECK(visible("\u00AD\u3164\u2800\uFE0F\U000E0041\U000E007F\u200B\u202E\u00A0") ==
          "<U+00AD><U+3164><U+2800><U+FE0F><U+E0041><U+E007F><U+200B><U+202E><U+00A0>");
    CHECK(visible("\x1b[2J\x7f\xff") == "<U+001B>[2J<U+007F><0xFF>");
    CHECK(visible("e\u0301\u0302\u0303\u0304") == "e\u0301\u0302<U+0303><U+0304>");
}

TEST_CASE("mcp: every row of a call's arguments begins with the gutter and fits the window") {
    const std::string fake(200, ' ');
    for (const int columns : {20, 80, 133}) {
        CAPTURE(columns);
        const CallText call = call_text(
            "files", "read",
            "{\"path\": \"" + fake + "\u4e2d\u4e2d run\", \"b\": \"" + std::string(300, 'x') + "\"}",
            columns);
        CHECK(call.name == "files: read");
        CHECK(call.is_whole);
        std::istringstream lines(call.lines);
        std::string line, joined;
        std::getline(lines, line);
        CHECK(line == "files: read");
        while (std::getline(lines, line)) {
            CHECK(line.starts_with("  | "));
            CHECK(text_width(line) < columns);
            joined += line.substr(4);
        }
        CHECK(joined ==
              "{\"path\": \"<200 blanks>\u4e2d\u4e2d run\", \"b\": \"" + std::string(300, 'x') + "\"}");
    }
    const CallText cut = call_text("files", "read", std::string(20000, 'x'), 80);
    CHECK(!cut.is_whole);
    CHECK(cut.lines.ends_with("\nnot shown: 3616 more bytes of arguments\n"));
}
