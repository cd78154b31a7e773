// Answers on a terminal: broken between words, with light Markdown, the same however they are cut.
#include "engine/commands/chat/terminal_text.h"

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "engine/commands/chat/answer_progress.h"
#include "engine/commands/chat/edit/cells.h"
#include "engine/text/utf8.h"

using runnel::commands::TerminalText;

namespace {

std::string shown(std::string_view text, int columns, bool styled) {
    TerminalText answer(columns, styled);
    std::string all = answer.push(text);
    return all + answer.finish();
}

std::string without_styles(std::string text) {
    for (size_t at; (at = text.find('\x1b')) != std::string::npos;)
        text.erase(at, text.find('m', at) - at + 1);
    return text;
}

std::string without_blanks(std::string text) {
    std::erase_if(text, [](char c) { return c == ' ' || c == '\n' || c == '\t'; });
    return text;
}

}  // namespace

TEST_CASE("terminal text: lines break between words, list items are indented") {
    CHECK(shown("one two three four", 10, true) == "one two\nthree four");
    CHECK(shown("one  two\n\nthree\n", 80, true) == "one  two\n\nthree\n");
    CHECK(shown("- one two three\n12. one two three\n  text goes on", 12, true) ==
          "- one two\n  three\n12. one two\n    three\n  text goes\n  on");
    CHECK(shown("a-word-that-is-longer-than-a-line b", 10, true) == "a-word-that-is-longer-than-a-line b");
    CHECK(shown("\u4e2d\u6587\u4e2d\u6587\u4e2d\u6587\u3002\u5b57", 10, true) ==
          "\u4e2d\u6587\u4e2d\u6587\u4e2d\n\u6587\u3002\u5b57");
}

TEST_CASE("terminal text: bold, headings, code and tables") {
    CHECK(shown("a **b c** d", 80, true) == "a \x1b[1mb c\x1b[22m d");
    CHECK(shown("**b**", 80, true) == "\x1b[1mb\x1b[22m");
    CHECK(shown("## Title here\ntext", 80, true) == "\x1b[1mTitle here\x1b[22m\ntext");
    CHECK(shown("#hash\n#", 80, true) == "#hash\n#");
    for (const char *literal :
         {"2**3**4", "a ** b ** c", "ls **/*.txt", "`a **b** c`", "*", "**", "***", "* item *x*"})
        CHECK(shown(literal, 80, true) == literal);
    CHECK(shown("```py\nif a:  # long line of code, **kept**\n    b\n```\nend of it", 10, true) ==
          "\x1b[2m  ── py ──\x1b[22m\nif a:  # long line of code, **kept**\n    b\n\x1b[2m  ──\x1b[22m\nend "
          "of it");
    CHECK(shown("| a | b **c** d | e |\n|---|---|---|", 10, true) == "| a | b **c** d | e |\n|---|---|---|");
    CHECK(shown("# a **b** `c`\n```x\n", 80, false) == "# a **b** `c`\n```x\n");
}

TEST_CASE("terminal text: the same bytes however the text is cut; no word is lost or broken") {
    const std::vector<std::string> parts = {"word",        "a",
                                            " ",           "  ",
                                            "\n",          "\n\n",
                                            "**",          "*",
                                            "`",           "```",
                                            "```py\n",     "# ",
                                            "- ",          "12. ",
                                            "| ",          "\u4e2d\u6587",
                                            "e\u0301",     "\U0001F468\u200D\U0001F469",
                                            "longer-word", "\t",
                                            ".",           "#"};
    for (uint32_t seed = 1; seed <= 600; ++seed) {
        CAPTURE(seed);
        std::mt19937 random(seed);
        const int columns = 2 + static_cast<int>(random() % 60);
        const bool styled = seed % 2 == 0;
        std::string text;
        for (int i = 0; i < 60; ++i) text += parts[random() % parts.size()];
        const std::string whole = shown(text, columns, styled);
        TerminalText answer(columns, styled);
        std::string cut;
        for (size_t at = 0; at < text.size();) {
            size_t bytes = 0;
            for (auto count = 1 + random() % 4; count > 0 && at + bytes < text.size(); --count)
                bytes += runnel::text::first_char(std::string_view(text).substr(at + bytes)).bytes;
            cut += answer.push(std::string_view(text).substr(at, bytes));
            at += bytes;
        }
        cut += answer.finish();
        REQUIRE(cut == whole);
        if (!styled) {
            REQUIRE(without_blanks(whole) == without_blanks(text));
            continue;
        }
        // Only marks are left out.
        std::string left = without_blanks(without_styles(whole)), all = without_blanks(text);
        for (const char mark : {'*', '#', '`'}) std::erase(left, mark), std::erase(all, mark);
        for (size_t at; (at = left.find("──")) != std::string::npos;)
            left.erase(at, std::string("──").size());
        REQUIRE(left == all);
        REQUIRE(
            (whole.find("\x1b[1m") == std::string::npos || whole.rfind("\x1b[22m") > whole.rfind("\x1b[1m")));
    }
}

TEST_CASE("answer progress: the remaining prefill, and the statistics of an answer") {
    using namespace runnel;
    CHECK(commands::reading_line({1, 1400, 1848, 400, 0}, 2.0) == "reading 1,448 tokens  69%  1 s left");
    CHECK(commands::reading_line({1, 0, 100, 0, 0}, 1.0) == "reading 100 tokens  0%");
    completion::Done done;
    done.usage = {.prompt_tokens = 1200, .completion_tokens = 14, .left_out = 0, .forgotten = 10};
    done.timings.decode_tokens = 13;
    done.timings.decode_seconds = 0.5;
    CHECK(commands::answer_line(done, 4096) == "14 tokens  26.0 tokens/s  context 1,204 of 4,096");
}
