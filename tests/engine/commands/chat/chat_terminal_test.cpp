// The line editor of `runnel chat` at a pseudo terminal: what its screen shows. Needs $RUNNEL.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/engine/commands/chat/terminal_chat.h"

using namespace runnel::testing;

TEST_CASE("chat at a terminal: messages of several lines work on all terminals, without terminfo") {
    if (absent()) return;
    for (const char *term : {"xterm-ghostty", "xterm-kitty", "xterm-256color", "no-such-terminal"})
        for (const auto &size : {std::pair(80, 24), std::pair(20, 10)}) {
            CAPTURE(term);
            CAPTURE(size.first);
            TerminalChat chat;
            chat.term = term;
            chat.columns = size.first, chat.rows = size.second;
            const Result r =
                chat.run({at_new_prompt("one\x1b\rtwo\nthree\\\rfou\x1b[A\x1b[A\x1b[A!\x1b[B\x1b[B\x1b[Br\r"),
                          at_new_prompt("/save " + chat.talk() + "\r"), at_new_prompt("\x04")});
            CAPTURE(r.out);
            CHECK(r.code == 0);
            CHECK(chat.said() == std::vector<std::string>{"one!\ntwo\nthree\nfour"});
            CHECK(chat.screen.find(">>> one!\n... two\n... three\n... four\n") != std::string::npos);
            CHECK(chat.unknown == 0);
        }
}

TEST_CASE("chat at a terminal: TERM=dumb reads whole lines and writes no sequences of its own") {
    if (absent()) return;
    TerminalChat chat;
    chat.term = "dumb";
    const auto prompt = [](const std::string &screen, bool) { return screen.ends_with(">>>\n"); };
    const Result r =
        chat.run({{prompt, "hello\n"},
                  {prompt, "\"\"\"\n"},
                  {[](const std::string &s, bool) { return s.ends_with("...\n"); }, "two\nlines\n\"\"\"\n"},
                  {prompt, "/save " + chat.talk() + "\n"},
                  {prompt, "\x04"}});
    CAPTURE(r.out);
    CHECK(r.code == 0);
    CHECK(r.out.find('\x1b') == std::string::npos);
    CHECK(chat.said() == std::vector<std::string>{"hello", "two\nlines"});
}

TEST_CASE("chat at a terminal: 200 KB pasted are shown as one piece and arrive whole") {
    if (absent()) return;
    std::string text;
    for (int i = 0; text.size() < 200'000; ++i) text += "line " + std::to_string(i) + " of what is pasted\n";
    text += "/exit";
    std::string pasted = text;
    std::replace(pasted.begin(), pasted.end(), '\n', '\r');
    TerminalChat chat;
    std::ofstream(chat.directory.path() / "editor") << "cp \"$1\" '" + chat.talk() + "'\n";
    chat.environment = {"VISUAL=sh " + (chat.directory.path() / "editor").string()};
    const Result r =
        chat.run({at_new_prompt("see \x1b[200~" + pasted + "\x1b[201~ above"),
                  when_shown(" lines] above", "\x07"),
                  {[&](const std::string &screen, bool) {
                       return std::filesystem::exists(chat.talk()) && screen.ends_with(" lines]\n");
                   },
                   "\x03"},
                  at_new_prompt("\x04")});
    CHECK(r.code == 0);
    const std::string lines = std::to_string(std::count(text.begin(), text.end(), '\n') + 1);
    CHECK(r.out.find("[pasted " + lines.substr(0, 1) + "," + lines.substr(1) + " lines]") !=
          std::string::npos);
    CHECK(r.out.find("line 1 of") == std::string::npos);
    CHECK(file_text(chat.talk()) == "see " + text + " above");
}

TEST_CASE("chat at a terminal: emoji, combining and right-to-left text; bidirectional controls are visible") {
    if (absent()) return;
    TerminalChat chat;
    const std::string family = "\U0001F468\u200D\U0001F469\u200D\U0001F467";
    const Result r = chat.run({at_new_prompt("x" + family +
                                             "e\u0301"
                                             "\u05E9\u05DC\u05D5\u05DD\u202E!\x7f\x7f\x7f"),
                               when_shown("\u05E9\u05DC\u05D5\n", "\x1b[D\x1b[D\x1b[D\x7f\x7f\x7f\r"),
                               at_new_prompt("/save " + chat.talk() + "\r"), at_new_prompt("\x04")});
    CAPTURE(r.out);
    CHECK(r.out.find("<U+202E>!") != std::string::npos);
    CHECK(r.out.find("\u202E") == std::string::npos);
    CHECK(chat.said() == std::vector<std::string>{"\u05E9\u05DC\u05D5"});
}

TEST_CASE("chat at a terminal: a resize while typing redraws the text") {
    if (absent()) return;
    TerminalChat chat;
    const std::string text = "a text of some words that is longer than forty columns are wide";
    const Result r =
        chat.run({at_new_prompt(text),
                  {[&](const std::string &s, bool) { return s.ends_with(">>> " + text + "\n"); }, "",
                   std::pair(40, 12)},
                  when_shown(">>> a text of some words that is longer\nthan forty columns are wide\n", "!\r"),
                  at_new_prompt("/save " + chat.talk() + "\r"),
                  at_new_prompt("\x04")});
    CAPTURE(r.out);
    CHECK(r.code == 0);
    CHECK(chat.said() == std::vector<std::string>{text + "!"});
}

TEST_CASE("chat at a terminal: Tab completes, Ctrl-R searches, the second Ctrl-C says how to leave") {
    if (absent()) return;
    TerminalChat chat;
    const Result r =
        chat.run({at_new_prompt("/sav\t" + chat.directory.path().string() + "/ta\x03"), at_new_prompt("/s\t"),
                  when_shown("/system\n",
                             "\x15"
                             "find me\r"),
                  at_new_prompt("other\r"),
                  at_new_prompt("\x12"
                                "fin"),
                  when_shown("(search: fin) find me\n", "\r"), at_new_prompt("\x03"), at_new_prompt("\x03"),
                  when_shown("leaves the chat\n", "/sav\t" + chat.talk() + "\r"), at_new_prompt("\x04")});
    CAPTURE(r.out);
    CHECK(r.code == 0);
    CHECK(r.out.find("/save " + chat.directory.path().string() + "/ta") != std::string::npos);
    CHECK(chat.said() == std::vector<std::string>{"find me", "other", "find me"});
}
