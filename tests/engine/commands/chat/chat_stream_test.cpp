// What the terminal of a chat shows while an answer is written, and what happens to keys typed meanwhile. A Ctrl-Z typed
// before an answer stops the program at fixed steps of the answer. Needs $RUNNEL.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>

#include "engine/text/utf8.h"
#include "tests/engine/commands/chat/terminal_chat.h"

using namespace runnel::testing;

namespace {

constexpr const char *kAnswer = "the quick brown fox jumps over the lazy dog and runs away from the river";
constexpr const char *kLeave = "\x04", *kStop = "\x1a", *kToggle = "\x14";

// Answers are always `answer`; with `thinks`, after six tokens of reasoning.
struct FixedChat : TerminalChat {
    explicit FixedChat(const std::string &answer, bool thinks = false) {
        arguments = {"--choice", answer};
        if (!thinks) return;
        const std::string path = (directory / "thinks.jinja").string();
        std::ofstream(path) << "{{ messages[-1].content }}{{ '</think>' if false }}<think>\n";
        arguments.insert(arguments.end(), {"--chat-template", path, "--thinking-budget", "6"});
    }
};

bool has(const std::string &text, const std::string &part) {
    return text.find(part) != std::string::npos;
}

int count(const std::string &text, const std::string &part) {
    int found = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
    return found;
}

std::string times(int n, const std::string &text) {
    std::string all;
    for (int i = 0; i < n; ++i) all += text;
    return all;
}

// Removes blanks and line ends.
std::string dense(std::string text) {
    std::erase_if(text, [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; });
    return text;
}

// Replaces the times of reasoning ("0.4 s", "11 s", "1:20") by T.
std::string timeless(const std::string &text) {
    static const std::regex time("(thought for |tokens, )([0-9.]+ s|[0-9:]+)");
    return std::regex_replace(text, time, "$1T");
}

std::string reasoning_in(const std::string &path, size_t message) {
    const auto json = nlohmann::json::parse(file_text(path), nullptr, false);
    return json.is_object() ? json["messages"][message].value("reasoning_content", "") : "";
}

// Types once a note is shown, on any number of lines, above a new prompt.
Step when_noted(const std::string &note, const std::string &typed) {
    return {
        [note = dense(note)](const std::string &screen, bool) { return has(dense(screen), note + ">>>"); },
        typed};
}

// The lines between two texts on the screen, each of which must be there.
std::string between(const std::string &screen, const std::string &from, const std::string &to) {
    const size_t begin = screen.find(from), end = screen.find(to, begin + from.size());
    REQUIRE(begin != std::string::npos);
    REQUIRE(end != std::string::npos);
    return screen.substr(begin + from.size(), end - begin - from.size());
}

}  // namespace

TEST_CASE("chat while answering: reasoning is one line, Ctrl-T at the prompt shows it") {
    if (absent()) return;
    for (const char *term : {"xterm-256color", "xterm-ghostty", "xterm-kitty"})
        for (const auto &size : {std::pair(80, 24), std::pair(20, 10)}) {
            CAPTURE(term);
            CAPTURE(size.first);
            FixedChat chat("the answer", true);
            chat.term = term;
            chat.columns = size.first, chat.rows = size.second;
            const Result r = chat.run({at_new_prompt("hello\r"), at_new_prompt("/save " + chat.talk() + "\r"),
                                       at_new_prompt(kToggle), when_noted("shown from now on", "again\r"),
                                       at_new_prompt(kToggle), when_noted("folded from now on", kLeave)});
            CAPTURE(chat.screen);
            CHECK(r.code == 0);
            CHECK(chat.unknown == 0);
            const std::string reasoning = reasoning_in(chat.talk(), 1);
            REQUIRE(dense(reasoning).size() > 3);
            CHECK(has(r.out, "thinking...\x1b[0m\x1b[K") == (size.first < 40));
            CHECK(has(r.out, " tokens\x1b[0m\x1b[K") == (size.first > 40));
            CHECK(!has(chat.screen, "thinking"));
            CHECK(count(timeless(chat.screen), "thought for T\nthe answer\n") == 1);
            CHECK(count(chat.screen, "the answer\n") == 2);
        }
}

TEST_CASE("chat while answering: Ctrl-T unfolds the reasoning in progress, and folds it") {
    if (absent()) return;
    FixedChat chat("the answer", true);
    chat.job_control = true;
    const Result r = chat.run({at_new_prompt(std::string("first\r") + kToggle),
                               at_new_prompt("second" + std::string("\r") + times(4, kStop) + kToggle),
                               when_stopped(1), when_stopped(2), when_stopped(3), when_stopped(4),
                               at_new_prompt("/save " + chat.talk() + "\r"), at_new_prompt(kLeave)});
    CAPTURE(chat.screen);
    CHECK(r.code == 0);
    CHECK(chat.unknown == 0);
    const std::string shown = between(chat.screen, ">>> first\n", "\n\nthe answer\n");
    CHECK(dense(shown) == dense(runnel::text::printable_for_terminal(reasoning_in(chat.talk(), 1))));
    const std::string folded = between(timeless(chat.screen), ">>> second\n", "the answer\n");
    CHECK(folded.ends_with("\n\nthought for T\n"));
}

TEST_CASE("chat while answering: Ctrl-Z restores the terminal; the answer goes on where it was") {
    if (absent()) return;
    for (const int columns : {80, 20}) {
        CAPTURE(columns);
        FixedChat chat(kAnswer);
        chat.columns = columns;
        chat.job_control = true;
        constexpr int kStops = 9;
        std::vector<Step> steps = {at_new_prompt("hello\r" + times(kStops, kStop))};
        for (int i = 1; i <= kStops; ++i) steps.push_back(when_stopped(i));
        steps.push_back(at_new_prompt(kLeave));
        const Result r = chat.run(steps);
        CAPTURE(chat.screen);
        CHECK(r.code == 0);
        CHECK(chat.unknown == 0);
        CHECK(!has(chat.screen, "raw mode"));
        // Each time, the line in progress is repeated; what stands above it remains.
        std::string text = chat.screen.substr(chat.screen.find("hello\n") + 6);
        std::vector<std::string> parts;
        for (size_t at; (at = text.find("\n[stopped]\n")) != std::string::npos;) {
            parts.push_back(text.substr(0, at));
            text.erase(0, at + std::string("\n[stopped]\n").size() + 1);  // and the line that was typed
        }
        REQUIRE(parts.size() == kStops);
        parts.push_back(text.substr(0, text.find("\n" + std::string(">>>"))));
        std::string answer;
        for (const std::string &part : parts) answer = answer.substr(0, answer.rfind('\n') + 1) + part;
        const std::string whole = columns == 80
                                      ? kAnswer
                                      : "the quick brown fox\njumps over the lazy\ndog and runs away\n"
                                        "from the river";
        CHECK(answer.starts_with(whole + "\n"));
    }
}

TEST_CASE("chat while answering: after a resize, lines have the new width") {
    if (absent()) return;
    FixedChat chat(kAnswer);
    chat.job_control = true;
    const Step narrow = {when_stopped(1).ready, "", std::pair(24, 10)};
    const Result r = chat.run({at_new_prompt("hello\r" + times(2, kStop)), narrow, when_stopped(1),
                               when_stopped(2), at_new_prompt(kLeave)});
    CAPTURE(chat.screen);
    CHECK(r.code == 0);
    CHECK(has(chat.screen, "the quick brown fox\njumps over the lazy dog\nand runs away from the\nriver\n"));
}

TEST_CASE("chat at a terminal: the text at the prompt survives Ctrl-Z") {
    if (absent()) return;
    TerminalChat chat;
    chat.job_control = true;
    const Result r = chat.run({at_new_prompt(std::string("some\x1b\rlines") + kStop), when_stopped(1),
                               when_shown("[stopped]\n\n>>> some\n... lines\n", "!\r"),
                               at_new_prompt("/save " + chat.talk() + "\r"), at_new_prompt(kLeave)});
    CAPTURE(chat.screen);
    CHECK(r.code == 0);
    CHECK(!has(chat.screen, "raw mode"));
    CHECK(chat.said() == std::vector<std::string>{"some\nlines!"});
}

TEST_CASE("chat while answering: keys are kept for the next line, a finished line is the next message") {
    if (absent()) return;
    FixedChat chat("the answer");
    const Result r = chat.run({at_new_prompt("hello\rsecond\rthi"), when_shown(">>> thi\n", "rd\r"),
                               at_new_prompt("/save " + chat.talk() + "\r"), at_new_prompt(kLeave)});
    CAPTURE(chat.screen);
    CHECK(r.code == 0);
    CHECK(chat.said() == std::vector<std::string>{"hello", "second", "third"});
    CHECK(count(chat.screen, "the answer\n") == 3);
}

TEST_CASE(
    "chat while answering: after Ctrl-C, finished lines are not sent; the next Ctrl-C says how to leave") {
    if (absent()) return;
    FixedChat chat(kAnswer);
    const Result r = chat.run(
        {at_new_prompt("hello\rsecond\rthird\r\x03"), when_shown(">>> second\n... third\n", " part\r"),
         at_new_prompt("x\r\x03"), at_new_prompt("\x03"),
         when_shown("leaves the chat\n", "/save " + chat.talk() + "\r"), at_new_prompt(kLeave)});
    CAPTURE(chat.screen);
    CHECK(r.code == 0);
    CHECK(has(chat.screen, kAnswer));  // of the message that was sent
    CHECK(chat.said() == std::vector<std::string>{"hello", "second\nthird part", "x"});
}

TEST_CASE("chat while answering: 200 KB pasted meanwhile become one piece of the next line") {
    if (absent()) return;
    std::string text;
    for (int i = 0; text.size() < 200'000; ++i) text += "line " + std::to_string(i) + " of what is pasted\n";
    std::string pasted = text;
    std::replace(pasted.begin(), pasted.end(), '\n', '\r');
    FixedChat chat("the answer");
    std::ofstream(chat.directory.path() / "editor") << "cp \"$1\" '" + chat.talk() + "'\n";
    chat.environment = {"VISUAL=sh " + (chat.directory.path() / "editor").string()};
    const Result r =
        chat.run({at_new_prompt("hello\rsee \x1b[200~" + pasted + "\x1b[201~ above"),
                  when_shown(" lines] above\n", "\x07"),
                  {[&](const std::string &screen, bool) {
                       return std::filesystem::exists(chat.talk()) && screen.ends_with(" lines]\n");
                   },
                   "\x03"},
                  at_new_prompt(kLeave)});
    CHECK(r.code == 0);
    CHECK(has(chat.screen, "the answer\n"));
    text.pop_back();
    CHECK(file_text(chat.talk()) == "see " + text + " above");
}

TEST_CASE("chat while answering: --plain and /set plain show what the model writes") {
    if (absent()) return;
    const std::string answer = "# title of **bold** words and a longer line";
    FixedChat chat(answer, true);
    chat.columns = 20;
    chat.arguments.emplace_back("--plain");
    const Result r =
        chat.run({at_new_prompt("hello\r"), at_new_prompt("/set plain off\r"), at_new_prompt("again\r"),
                  at_new_prompt("/set plain maybe\r"), at_new_prompt(kLeave)});
    CAPTURE(chat.screen);
    CHECK(r.code == 0);
    CHECK(has(
        r.out,
        "\r\n\r\n" + answer + "\x1b[0m\r\n"));  // the terminal breaks the line, and the reasoning was shown
    CHECK(count(chat.screen, "thought for") == 1);
    CHECK(has(timeless(chat.screen), "thought for T\ntitle of bold words\nand a longer line\n"));
    CHECK(has(dense(chat.screen), "plain:onoroff,not'maybe'"));
}

TEST_CASE("chat while answering: with NO_COLOR there are no colors, and reasoning is still folded") {
    if (absent()) return;
    FixedChat chat("**the** answer", true);
    chat.environment = {"NO_COLOR=1"};
    const Result r = chat.run({at_new_prompt("hello\r"), at_new_prompt(kToggle),
                               when_noted("shown from now on", "again\r"), at_new_prompt(kLeave)});
    CAPTURE(r.out);
    CHECK(r.code == 0);
    for (const char *color : {"\x1b[1m", "\x1b[2m", "\x1b[22m", "\x1b[22;2m"}) CHECK(!has(r.out, color));
    CHECK(has(timeless(chat.screen), "thought for T\n**the** answer\n"));
    CHECK(has(chat.screen, ">>> again\n<think>\n"));
    CHECK(has(chat.screen, "\n</think>\n\n**the** answer\n"));
}

TEST_CASE("chat while answering: TERM=dumb gets one line for the reasoning, and no control sequences") {
    if (absent()) return;
    FixedChat chat("**the** answer of some words", true);
    chat.term = "dumb";
    chat.columns = 20;
    const auto prompt = [](const std::string &screen, bool) { return screen.ends_with(">>>\n"); };
    const Result r = chat.run({{prompt, "hello\n"}, {prompt, kLeave}});
    CAPTURE(r.out);
    CHECK(r.code == 0);
    CHECK(!has(r.out, "\x1b"));
    CHECK(has(timeless(r.out), " tokens, T\r\n**the** answer of some words\r\n"));
}

TEST_CASE("chat while answering: emoji, combining and right-to-left text arrive as they are") {
    if (absent()) return;
    const std::string family = "\U0001F468\u200D\U0001F469\u200D\U0001F467";
    const std::string answer =
        "a " + family + " e\u0301e\u0301 \u05E9\u05DC\u05D5\u05DD \u0628\u0628 \u4e2d\u6587\u4e2d\u6587 end";
    for (const int columns : {80, 20}) {
        CAPTURE(columns);
        FixedChat chat(answer);
        chat.columns = columns, chat.rows = 10;
        const Result r = chat.run({at_new_prompt("hello\r"), at_new_prompt(kLeave)});
        CAPTURE(chat.screen);
        CHECK(r.code == 0);
        CHECK(chat.unknown == 0);
        CHECK(has(dense(chat.screen), dense(answer)));
        CHECK(has(r.out, family));
    }
}
