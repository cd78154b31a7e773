#include "engine/commands/chat/mcp/content.h"

#include <doctest/doctest.h>

using namespace runnel::commands;
using namespace runnel::commands::mcp;

TEST_CASE("mcp: the text of a result has no control characters, and names what is not text") {
    CHECK(plain_text("a\r\nb\tc\x1b[1m\xff\xc2\x85") == "a\nb\tc\xef\xbf\xbd[1m\xef\xbf\xbd\xef\xbf\xbd");
    CHECK(result_text(parse_json(R"({"content": [{"type": "text", "text": "one"}, {"type": "audio",
        "mimeType": "audio/wav", "data": "AA"}, {"type": "resource_link", "uri": "file:///b"}, {"text": "no type"},
        {"type": "text", "text": "two"}, 3]})")) ==
          "one\n[audio, audio/wav: not shown]\n[resource_link, file:///b: not shown]\n"
          "[a part of unknown type: not shown]\ntwo\n[a part of unknown type: not shown]");
    CHECK(result_text(parse_json(R"({"content": [], "structuredContent": {"a": [1]}})")) == R"({"a":[1]})");
    for (const char *empty : {"{}", "[]", "null", R"({"content": 1})"})
        CHECK(result_text(parse_json(empty)) == "");
}

TEST_CASE("mcp: a long result is cut between characters, and says so") {
    CHECK(bounded("short", 5) == "short");
    CHECK(bounded("ab\xc3\xa9z", 3) == "ab\n[cut: 3 more bytes]");
    CHECK(bounded("ab\xc3\xa9z", 4) == "ab\xc3\xa9\n[cut: 1 more bytes]");
    CHECK(bounded("\x80\x80\x80", 2) == "\n[cut: 3 more bytes]");
}

TEST_CASE("mcp: the terminal shows the first lines of a result, without control sequences") {
    CHECK(shortened("", 40) == "  (nothing)");
    CHECK(shortened("a\x1b[2J\n\nb", 40) == "  a\\x1b[2J\n  \n  b");
    CHECK(shortened("1\n2\n3\n4\n5\n6", 40) == "  1\n  2\n  3\n  4\n  ... 3 more bytes");
    CHECK(shortened(std::string(100, 'w'), 22) == "  " + std::string(17, 'w') + "...");
}
