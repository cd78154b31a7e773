#include "engine/commands/cli/completion.h"

#include <doctest/doctest.h>

#include <cstdlib>
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
    runnel::testing::write_file(directory / "small.gguf", {});
    const auto completed = [&](const std::string &words, int count) {
        const std::string line = "cd " + directory.path().string() + " && bash -c 'source " + script +
                                 "; COMP_WORDS=(" + words + "); COMP_CWORD=" + std::to_string(count) +
                                 "; _runnel; echo ${COMPREPLY[*]}'";
        std::string out = output_of(line);
        if (out.ends_with('\n')) out.pop_back();
        return out;
    };
    CHECK(completed("runnel ru", 1) == "run");
    CHECK(completed("runnel sma", 1) == "small.gguf");
    CHECK(completed("runnel run --repeat-p", 2) == "--repeat-penalty");
    CHECK(completed("runnel run -ctk q", 3) == "q8_0 q4_0");
    CHECK(completed("runnel run sm", 2) == "small.gguf");
    CHECK(completed("runnel run -f sm", 3) == "small.gguf");
    CHECK(completed("runnel completion f", 2) == "fish");
    CHECK(completed("runnel chat --color o", 3) == "on off");
}
