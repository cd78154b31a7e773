// `runnel chat`, run as a program: its commands, and what it does at a terminal. Needs $RUNNEL.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/engine/commands/program_support.h"
#include "tests/support/model_maker.h"
#include "tests/support/process.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;

namespace {

std::string model() {
    static const TemporaryModel made{ModelShape{}};
    return made.path.string();
}

Process chat_process(std::vector<std::string> more) {
    Process p{};
    p.stdout_limit = static_cast<size_t>(-1);
    p.arguments = {"chat", model(), "--temp", "0", "-n", "6", "--ignore-eos"};
    p.arguments.insert(p.arguments.end(), more.begin(), more.end());
    return p;
}

std::string answers(const std::string &input, int code = 0) {
    Process p = chat_process({"-q"});
    p.input = input;
    const Result r = execute(p);
    CHECK(r.code == code);
    return r.out;
}

std::string read_file(const std::filesystem::path &path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE("chat: messages that were undone or edited do not affect later answers") {
    if (absent()) return;
    const std::string plain = answers("hello\nsecond\n");
    CHECK(answers("hello\nother\n/undo\nsecond\n").ends_with(plain.substr(plain.find('\n') + 1)));
    CHECK(answers("hello\nother\n/edit second\n").ends_with(plain.substr(plain.find('\n') + 1)));
    CHECK(answers("x\n/clear\nhello\nsecond\n").ends_with(plain));
    CHECK(answers("/undo\n/edit\n/edit x\n/regen\nhello\nsecond\n", 5) == plain);
}

TEST_CASE("chat: a saved conversation continues where it ended, files can be messages") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string talk = (directory / "talk.json").string(), text = (directory / "text").string();
    const std::string plain = answers("/system be kind\nhello\nsecond\n");
    answers("/system be kind\nhello\n/save " + talk + "\n");
    const auto json = nlohmann::json::parse(read_file(talk));
    REQUIRE(json["messages"].size() == 3);
    CHECK(json["messages"][0]["content"] == "be kind");
    CHECK(json["messages"][1]["content"] == "hello");
    CHECK(plain.ends_with(answers("/load " + talk + "\nsecond\n")));
    std::ofstream(text) << "second";
    CHECK(plain.ends_with(answers("/load " + talk + "\n/read " + text + "\n")));
    // with a message, the file is a part of it
    CHECK(answers("/read " + text + "\nwhat is it?\n") ==
          answers("\"\"\"\ntext:\n```\nsecond\n```\n\nwhat is it?\n\"\"\"\n"));
    Process attached = chat_process({"-q", "-a", text});
    attached.input = "what is it?\n";
    CHECK(execute(attached).out == answers("/read " + text + "\nwhat is it?\n"));
    // what fails is reported, and the conversation stays as it is
    CHECK(plain.ends_with(answers("/load " + talk + "\n/load /nowhere\n/load " + text +
                                      "\n/read /nowhere\n/save /nowhere/x\n/save\nsecond\n",
                                  2)));
}

TEST_CASE("chat: settings change the answers that follow") {
    if (absent()) return;
    Process p = chat_process({});
    p.input = "/set predict 2\nhello\n/show\n/set predict\n/set wrong 1\n/set temp x\n";
    const Result r = execute(p);
    CAPTURE(r.err);
    CHECK(r.code == 5);
    CHECK(r.out.size() < answers("hello\n").size());
    CHECK(r.err.find("predict 2\n") != std::string::npos);
    CHECK(r.err.find("messages 2\n") != std::string::npos);
    CHECK(r.err.find("there is no setting 'wrong'") != std::string::npos);
    CHECK(r.err.find("the value is missing") != std::string::npos);
    CHECK(r.err.find("temp: a number from 0 to 100, not 'x'") != std::string::npos);
}

TEST_CASE("chat: reasoning is not written to a pipe unless requested") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string other = (directory / "thinks.jinja").string();
    // The template begins the reasoning, and the model never ends it.
    std::ofstream(other) << "{{ messages[-1].content }}{{ '</think>' if false }}<think>\n";
    Process p = chat_process({"-q", "--chat-template", other, "--temp", "1", "-s", "5", "-n", "40"});
    p.input = "hello\n";
    CHECK(execute(p).out == "\n");
    p.arguments.emplace_back("--show-thinking");
    CHECK(execute(p).out.starts_with("<think>\n"));
    p.input = "/think\n/think off\n/think much\n";
    const Result r = execute(p);
    CHECK(r.code == 5);
    CHECK(r.err.find("auto\n") != std::string::npos);
    CHECK(r.err.find("/think off: the chat template cannot turn reasoning off") != std::string::npos);
    CHECK(r.err.find("/think: on, off, low, medium, high or auto, not 'much'") != std::string::npos);
    std::ofstream(other)
        << "{{ messages[-1].content }}{{ '</think>' if false }}{% if thinking %}<think>\n{% endif %}";
    p.input = "/think on\nhello\n/think\n";
    const Result on = execute(p);
    CHECK(on.code == 0);
    CHECK(on.err == "on\n");
    CHECK(on.out.starts_with("<think>\n"));
}

// Types at a terminal: each step waits for the prompt that follows the step before it.
TEST_CASE("chat: a pasted text and an edited one are one message each; a signal leaves the terminal usable") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::filesystem::path editor = directory / "editor";
    std::ofstream(editor) << "printf 'from the editor\\nin two lines\\n' > \"$1\"\n";
    Process p = chat_process({});
    p.environment = {"XDG_STATE_HOME=" + directory.path().string(), "TERM=xterm", "LC_ALL=C",
                     "VISUAL=sh " + shell_word(editor)};
    p.terminal = true;
    const std::string talk = (directory / "talk.json").string();
    const std::vector<std::string> typed = {"\x1b[200~pasted\r\rin \x07lines\r\x1b[201~\r", "draft\x07",
                                            "/save " + talk + "\r", ""};
    size_t step = 0, after = 0;
    bool sent_editor_line = false;
    int program = 0;
    p.watch = [&](const std::string &, int pid) { program = pid; };
    p.type = [&](const std::string &out, bool reads_keys) -> std::string {
        if (!reads_keys) return "";
        if (step == 2 && !sent_editor_line) {
            if (out.find("in two lines\r\x1b[", after) == std::string::npos) return "";
            sent_editor_line = true;
            after = out.size();
            return "\r";
        }
        if (!at_prompt(out, after) || step == typed.size()) return "";
        after = out.size();
        if (step + 1 == typed.size() && program > 0) kill(program, SIGTERM);
        return typed[step++];
    };
    const Result r = execute(p);
    CAPTURE(r.out);
    CHECK(r.code == 128 + SIGTERM);
    CHECK(r.out.find("\x1b[?2004h") != std::string::npos);
    CHECK(r.out.ends_with("\x1b[?2004l"));
    const auto json = nlohmann::json::parse(read_file(talk), nullptr, false);
    REQUIRE(json.is_object());
    REQUIRE(json["messages"].size() == 4);
    CHECK(json["messages"][0]["content"] == "pasted\n\nin lines");
    CHECK(json["messages"][2]["content"] == "from the editor\nin two lines");
}

namespace {

// Runs a chat in a terminal and types each line at the next prompt.
Result chat_in_terminal(const std::string &state, const std::vector<std::string> &lines,
                        std::vector<std::string> environment = {}) {
    Process p = chat_process({});
    p.environment = {"XDG_STATE_HOME=" + state, "TERM=xterm", "LC_ALL=C"};
    p.environment.insert(p.environment.end(), environment.begin(), environment.end());
    p.terminal = true;
    size_t step = 0, after = 0;
    p.type = [&](const std::string &out, bool reads_keys) -> std::string {
        if (!reads_keys || !at_prompt(out, after) || step == lines.size()) return "";
        after = out.size();
        return lines[step++];
    };
    return execute(p);
}

}  // namespace

TEST_CASE("chat: concurrent chats keep each other's history") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string state = directory.path().string();
    const std::filesystem::path history = directory / "runnel/history";
    chat_in_terminal(state, {"the first\r", "\x04"});
    std::vector<std::thread> chats;
    for (const char *name : {"alpha", "beta", "gamma"})
        chats.emplace_back([&, name] {
            std::vector<std::string> lines;
            for (int i = 0; i < 5; ++i) lines.push_back(name + std::to_string(i) + "\r");
            lines.push_back("\x04");
            chat_in_terminal(state, lines);
        });
    for (std::thread &chat : chats) chat.join();
    const std::string text = read_file(history);
    CAPTURE(text);
    CHECK(std::count(text.begin(), text.end(), '\n') == 1 + 1 + 15);
    for (const char *name : {"alpha", "beta", "gamma"})
        for (int i = 0; i < 5; ++i) CHECK(text.find(name + std::to_string(i) + "\n") != std::string::npos);
    // Later chats load them: the up arrow, twice, repeats an earlier line.
    const Result again = chat_in_terminal(state, {"\x1b[A\x1b[A\r", "\x04"});
    CHECK(again.code == 0);
    CHECK(std::count(text.begin(), text.end(), '\n') + 1 == [&] {
        const std::string now = read_file(history);
        return std::count(now.begin(), now.end(), '\n');
    }());
    chat_in_terminal(state, {"not to be kept\r", "\x04"}, {"RUNNEL_NO_HISTORY=1"});
    CHECK(read_file(history).find("not to be kept") == std::string::npos);
}

TEST_CASE("chat: a history that is a pipe or a link is ignored, a long one is shortened") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::filesystem::path folder = directory / "runnel", history = folder / "history";
    std::filesystem::create_directory(folder);
    REQUIRE(mkfifo(history.c_str(), 0600) == 0);
    CHECK(chat_in_terminal(directory.path().string(), {"hello\r", "\x04"}).code == 0);
    std::filesystem::remove(history);
    std::ofstream(folder / "precious") << "keep me";
    std::filesystem::create_symlink("precious", history);
    CHECK(chat_in_terminal(directory.path().string(), {"hello\r", "\x04"}).code == 0);
    CHECK(read_file(folder / "precious") == "keep me");
    std::filesystem::remove(history);
    {
        std::ofstream out(history);
        out << "_HiStOrY_V2_\n";
        for (int i = 0; i < 5000; ++i) out << "line\\040" << i << "\n";
    }
    CHECK(chat_in_terminal(directory.path().string(), {"hello\r", "\x04"}).code == 0);
    const std::string text = read_file(history);
    CHECK(std::count(text.begin(), text.end(), '\n') == 1 + 2000 + 1);
    CHECK(text.find("line\\0404999\nhello\n") != std::string::npos);
}

TEST_CASE("chat: Ctrl-C ends a paste without an end mark") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const Result r =
        chat_in_terminal(directory.path().string(), {"\x1b[200~half a paste\x03", "hello\r", "\x04"});
    CAPTURE(r.out);
    CHECK(r.code == 0);
    CHECK(r.out.find("^C") != std::string::npos);
}

TEST_CASE("chat: without a terminal, the exit code is that of the command that failed") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string text = (directory / "text").string();
    std::ofstream(text) << "no conversation";
    answers("/load /nowhere\nhello\n", 2);
    answers("/load " + text + "\nhello\n", 5);
    answers("/save /nowhere/x\nhello\n", 1);
    answers("/set temp x\nhello\n", 5);
}

TEST_CASE("chat: through pipes, stdout has nothing but answers") {
    if (absent()) return;
    const std::string model = tiny().path.string();
    const Result r = runnel_with(
        {"chat", model, "-n", "5", "-s", "1", "-q", "--temp", "0"},
        "hello\n\n/help\n\"\"\"\ntwo\nlines\n\"\"\"\n/unknown\n/system be kind\n/system\n/regen\n/stats\n"
        "/reset\nhello\n/exit\nnever\n");
    CHECK(r.code == 2);  // that of /unknown
    CHECK(r.out.find('\x1b') == std::string::npos);
    CHECK(r.out.find(">>>") == std::string::npos);
    CHECK(r.err.find("/bye") != std::string::npos);
    CHECK(r.err.find("no command /unknown") != std::string::npos);
    CHECK(r.err.find("be kind") != std::string::npos);
    CHECK(r.err.find("tokens/s") != std::string::npos);
    CHECK(runnel_with({"chat", model, "-q"}, "").code == 0);
}

TEST_CASE("chat: a conversation that outgrows the context forgets its beginning, and says so") {
    if (absent()) return;
    std::string input;
    for (int i = 0; i < 8; ++i) input += "message number " + std::to_string(i) + "\n";
    const std::vector<std::string> base = {"chat", tiny().path.string(), "-n", "20", "-c",
                                           "200",  "--ignore-eos"};
    const Result shifted = runnel_with(base, input);
    CHECK(shifted.code == 0);
    CHECK(shifted.err.find("are forgotten") != std::string::npos);
    auto strict = base;
    strict.insert(strict.end(), {"--on-overflow", "error"});
    const Result error = runnel_with(strict, input);
    CHECK(error.code == 5);
    CHECK(error.err.find("the context holds 200") != std::string::npos);
}

TEST_CASE("chat: at a terminal, Ctrl-C stops an answer or a line, and Ctrl-D ends the chat") {
    if (absent()) return;
    const TemporaryDirectory directory;
    Process p = process({"chat", tiny().path.string(), "-n", "100000", "--ignore-eos", "-c", "100000"});
    p.environment = {"XDG_STATE_HOME=" + directory.path().string(), "TERM=xterm", "LC_ALL=C"};
    p.terminal = true;
    int stage = 0;
    bool stopped = false;
    size_t answer_at = 0;
    // A message; Ctrl-C in its endless answer; Ctrl-C in a line; SIGINT from another process in a line, which
    // has no effect; Ctrl-D.
    int program = 0;
    p.watch = [&](const std::string &, int pid) { program = pid; };
    p.type = [&](const std::string &out, bool reads_keys) -> std::string {
        const bool waits = reads_keys && at_prompt(out, answer_at);
        if (stage == 0 && waits) return stage = 1, answer_at = out.size(), "gr\xc3\xbc\xc3\x9f dich\r";
        if (stage == 1 && out.size() > answer_at + 200) return stage = 2, stopped = true, "\x03";
        if (stage == 2 && waits) return stage = 3, answer_at = out.size(), "given up\x03";
        if (stage == 3 && waits) {
            kill(program, SIGINT);
            return stage = 4, "\x04";
        }
        return "";
    };
    const Result r = execute(p);
    CAPTURE(r.out);
    CHECK(stopped);
    CHECK(stage == 4);
    CHECK(r.code == 0);
    const std::filesystem::path history = directory / "runnel/history";
    REQUIRE(std::filesystem::exists(history));
    CHECK((std::filesystem::status(history).permissions() & std::filesystem::perms::all) ==
          (std::filesystem::perms::owner_read | std::filesystem::perms::owner_write));
}
