// Command lines from the documentation of llama.cpp, ollama and mistral.rs, with runnel's commands in place
// of the programs, and what each of them means here.
#include <doctest/doctest.h>

#include <string>

#include "engine/commands/cli/command_line.h"
#include "engine/commands/cli/foreign.h"
#include "tests/engine/commands/cli/documented_lines.h"

using namespace runnel::commands;
using namespace runnel::testing;

namespace {

// Splits a line into words as a shell does: at blanks outside quotes.
Arguments words_of(std::string_view line) {
    Arguments words;
    bool open = false, begun = false;
    for (const char c : line) {
        if (c == '\'') {
            open = !open;
            if (!begun) words.emplace_back();
            begun = true;
        } else if (c == ' ' && !open) {
            begun = false;
        } else {
            if (!begun) words.emplace_back();
            begun = true;
            words.back() += c;
        }
    }
    return words;
}

// "m temp=0.5 raw (-fa)": words, options under their names here, accepted options without effect in
// parentheses; "! MESSAGE" for a refusal.
std::string meaning(const std::string &line) {
    Arguments arguments = words_of(line);
    for (const CommandEntry &entry : command_entries()) {
        if (arguments.empty() || entry.name != arguments[0]) continue;
        Common common;
        const Command command = with_common_options(entry.make(), common);
        try {
            const CommandLine read = parse_command_line({arguments.begin() + 1, arguments.end()}, command);
            std::string text;
            for (const std::string &word : read.words) text += word + " ";
            for (const CommandLine::Given &given : read.given) {
                given.option->set(given.value);
                text += std::string(given.option->name()) +
                        (given.option->is_flag() ? " " : "=" + given.value + " ");
            }
            for (const std::string &note : read.notes) text += "(" + note.substr(0, note.find(' ')) + ") ";
            if (text.ends_with(' ')) text.pop_back();
            return text;
        } catch (const UsageError &error) {
            return std::string("! ") + error.what();
        } catch (const ValueError &error) {
            return std::string("! ") + error.what();
        }
    }
    return "! no such command";
}

}  // namespace

TEST_CASE("command lines of other programs' documentation mean the same, or get an answer that helps") {
    CHECK(std::size(kDocumentedLines) >= 200);
    for (const DocumentedLine &row : kDocumentedLines) {
        CAPTURE(std::string(row.line));
        const std::string meant = meaning(row.line), wanted = row.meaning;
        if (wanted.starts_with("!")) {
            CAPTURE(meant);
            CHECK(meant.starts_with("!"));
            CHECK(meant.find(wanted.substr(2)) != std::string::npos);
        } else {
            CHECK(meant == wanted);
        }
    }
}

TEST_CASE("every option of llama.cpp has a meaning: the same, nothing to do, or what to use") {
    CHECK(std::size(kLlamaOptions) == 278);
    for (const PeerOption &option : kLlamaOptions)
        for (const std::string &name : words_of(option.names)) {
            CAPTURE(name);
            const std::string meant = meaning(std::string(option.tool) + " m.gguf " + name + " 1");
            CHECK(meant.find("has no option") == std::string::npos);
        }
}

TEST_CASE("options of other programs: replacements are options, and everything is explained") {
    for (const CommandEntry &entry : command_entries()) {
        CAPTURE(entry.name);
        Common common;
        const Command command = with_common_options(entry.make(), common);
        for (const Foreign &foreign : foreign_options())
            for (const std::string &name : words_of(foreign.names)) {
                CAPTURE(name);
                CHECK(name.starts_with('-'));
                CHECK_FALSE(foreign.text.empty());
                if (foreign.meaning == Foreign::Meaning::Same && find_foreign(name, entry.name) == &foreign &&
                    !command.options.find(name)) {
                    const std::string target = foreign.replacement("1").front();
                    bool exists = false;  // in any command: other commands name the one that has it
                    for (const CommandEntry &other : command_entries())
                        exists = exists || other.make().options.find(target);
                    CHECK(exists);
                }
            }
    }
}
