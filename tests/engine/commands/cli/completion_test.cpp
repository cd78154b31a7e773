#include "engine/commands/cli/completion.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "engine/commands/io.h"
#include "tests/support/temporary.h"

using namespace runnel::commands;
using runnel::testing::TemporaryDirectory;

namespace {

std::string output_of(const std::string &command) {
    FILE *const pipe = popen(command.c_str(), "r");
    REQUIRE(pipe);
    std::string text;
    for (int c; (c = std::fgetc(pipe)) != EOF;) text += static_cast<char>(c);
    pclose(pipe);
    return text;
}

}  // namespace

TEST_CASE("completion: every command and option is in every script and in the man page") {
    for (const char *shell : {"bash", "zsh", "fish", "man"}) {
        CAPTURE(std::string(shell));
        const std::string script = completion_script(shell);
        for (const CommandEntry &entry : command_entries()) {
            CHECK(script.find(entry.name) != std::string::npos);
            const Command command = entry.make();
            for (const Option &option : command.options.options()) {
                std::string name;
                for (const char c : option.name())
                    name += std::string(c == '-' && std::string(shell) == "man" ? "\\" : "") + c;
                CHECK(script.find(name) != std::string::npos);
            }
        }
    }
    CHECK_THROWS_AS(completion_script("tcsh"), UsageError);
}

TEST_CASE("completion: bash completes commands, options, words and files") {
    const TemporaryDirectory directory;
    const std::string script = (directory / "runnel.bash").string(), text = completion_script("bash");
    runnel::testing::write_file(script, std::as_bytes(std::span(text)));
    for (const char *name : {"small.gguf", "my model.gguf", "notes.txt"})
        runnel::testing::write_file(directory / name, {});
    std::filesystem::create_directory(directory / "a folder");
    // The completions of the last word, a line each.
    const auto completed = [&](const std::string &words) {
        const std::string line = "cd " + directory.path().string() + " && bash -c 'source " + script +
                                 "; COMP_WORDS=(" + words +
                                 "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _runnel; "
                                 "printf \"%s\\n\" \"${COMPREPLY[@]}\"'";
        std::string out = output_of(line);
        if (out.ends_with('\n')) out.pop_back();
        return out;
    };
    CHECK(completed("runnel ru") == "run");
    CHECK(completed("runnel sma") == "small.gguf");
    CHECK(completed("runnel my") == "my model.gguf");
    CHECK(completed("runnel a") == "a folder");
    CHECK(completed("runnel no").empty());
    CHECK(completed("runnel --v") == "--version");
    CHECK(completed("runnel \"\"").ends_with("\n--version\nmy model.gguf\nsmall.gguf\na folder"));
    CHECK(completed("runnel run --repeat-p") == "--repeat-penalty");
    CHECK(completed("runnel run -ctk q") == "q8_0\nq5_1\nq5_0\nq4_1\nq4_0");
    CHECK(completed("runnel run -ctk = q") == "q8_0\nq5_1\nq5_0\nq4_1\nq4_0");
    CHECK(completed("runnel run --think =").starts_with("auto\non\noff\n"));
    CHECK(completed("runnel run sm") == "small.gguf");
    CHECK(completed("runnel run my") == "my model.gguf");
    CHECK(completed("runnel run -f no") == "notes.txt");
    CHECK(completed("runnel completion f") == "fish");
    CHECK(completed("runnel help qu") == "quantize");
    CHECK(completed("runnel chat --color o") == "on\noff");
    // A model in place of a command is a chat with it.
    CHECK(completed("runnel small.gguf --color o") == "on\noff");
    CHECK(completed("runnel small.gguf --show-th") == "--show-thinking");
}

// Where there are such shells; CI has none, and needs none.
TEST_CASE("completion: fish completes the same, and zsh reads its script") {
    const TemporaryDirectory directory;
    for (const char *shell : {"zsh", "fish"}) {
        const std::string text = completion_script(shell);
        runnel::testing::write_file(directory / shell, std::as_bytes(std::span(text)));
    }
    const std::string in = "cd " + directory.path().string() + " && ";
    if (std::system("command -v zsh >/dev/null") == 0) CHECK(std::system((in + "zsh -n zsh").c_str()) == 0);
    if (std::system("command -v fish >/dev/null") != 0) return;
    const auto completed = [&](const std::string &line) {
        return output_of(in + "HOME=. fish -c 'source fish; complete -C \"" + line +
                         "\" | string split -f 1 \\t'");
    };
    CHECK(completed("runnel ru") == "run\n");
    CHECK(completed("runnel help qu") == "quantize\n");
    CHECK(completed("runnel --v") == "--version\n");
    CHECK(completed("runnel run -ctk q") == "q4_0\nq4_1\nq5_0\nq5_1\nq8_0\n");
    CHECK(completed("runnel completion f") == "fish\n");
    CHECK(completed("runnel run chat --show-th") == "--show-thinking\n");
    CHECK(completed("runnel small.gguf --show-th") == "--show-thinking\n");
    CHECK(completed("runnel bench chat --show-th").empty());
}
