#include "engine/commands/cli/command_line.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "engine/commands/cli/foreign.h"
#include "engine/commands/cli/nearest.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

// "run, chat and batch": the other commands that have the option.
std::string owners(const std::string &name) {
    std::vector<std::string> names;
    for (const CommandEntry &entry : command_entries())
        if (entry.make().options.find(name)) names.emplace_back(entry.name);
    std::string text;
    for (size_t i = 0; i < names.size(); ++i)
        text += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
    return text;
}

[[noreturn]] void fail_unknown(const std::string &name, const Command &command) {
    if (const std::string others = owners(name); !others.empty())
        throw UsageError(gguf::printable(name, 256) + " is an option of " + others + ", not of " +
                         std::string(command.name));
    std::vector<std::string> candidates;
    for (const Option &option : command.options.options())
        for (const std::string &candidate : option.names)
            if (candidate.starts_with("--")) candidates.push_back(candidate.substr(2));
    const auto near = nearest(std::string_view(name).substr(name.starts_with("--") ? 2 : 1), candidates);
    throw UsageError(std::string(command.name) + " has no option " + gguf::quoted(name) +
                     (near ? "; did you mean --" + *near + "?"
                           : "; runnel " + std::string(command.name) + " --help lists the options"));
}

// "-n5", "-c4k", "-n-1": one letter and a number.
bool has_number_attached(std::string_view word) {
    if (word.size() < 3 || word[1] == '-') return false;
    const std::string_view rest = word.substr(2);
    return std::ranges::all_of(
               rest,
               [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-'; }) &&
           (std::isdigit(static_cast<unsigned char>(rest[0])) ||
            ((rest[0] == '-' || rest[0] == '.') && rest.size() > 1 &&
             std::isdigit(static_cast<unsigned char>(rest[1]))));
}

class Reader {
  public:
    Reader(const Arguments &arguments, const Command &command)
        : waiting_(arguments.rbegin(), arguments.rend()), command_(command) {}

    CommandLine read() {
        while (!waiting_.empty()) {
            const std::string word = take();
            if (word == "--") {
                while (!waiting_.empty()) line_.words.push_back(take());
            } else if (word.size() < 2 || word[0] != '-') {
                line_.words.push_back(word);
            } else {
                read_option(word);
            }
        }
        return std::move(line_);
    }

  private:
    std::string take() {
        std::string word = std::move(waiting_.back());
        waiting_.pop_back();
        return word;
    }

    void read_option(const std::string &word) {
        const size_t equals = word.find('=');
        std::string name = word.substr(0, equals);
        std::replace(name.begin(), name.end(), '_', '-');
        std::optional<std::string> value;
        if (equals != std::string::npos) value = word.substr(equals + 1);
        const Option *option = command_.options.find(name);
        if (!option && has_number_attached(word)) {
            option = command_.options.find(word.substr(0, 2));
            if (option && !option->is_flag()) {
                name = word.substr(0, 2);
                value = word.substr(2);
            } else {
                option = nullptr;
            }
        }
        if (!option) return read_foreign(name, value);
        if (!value && !option->is_flag()) value = next_value(name, *option);
        line_.given.push_back({option, value.value_or("true"), name});
    }

    std::string next_value(const std::string &name, const Option &option) {
        if (!option.alone.empty() &&
            (waiting_.empty() || std::ranges::find(option.choices, waiting_.back()) == option.choices.end()))
            return option.alone;
        if (waiting_.empty()) throw UsageError(name + " needs a value: write " + name + " " + option.value);
        return take();
    }

    void read_foreign(const std::string &name, std::optional<std::string> value) {
        const Foreign *foreign = find_foreign(name, command_.name);
        if (!foreign) fail_unknown(name, command_);
        if (!value && !waiting_.empty() && foreign->takes(waiting_.back())) value = take();
        if (foreign->meaning == Foreign::Meaning::Same) {
            const Arguments meant = foreign->replacement(value.value_or(""));
            waiting_.insert(waiting_.end(), meant.rbegin(), meant.rend());
            return;
        }
        if (foreign->meaning == Foreign::Meaning::Nothing || foreign->is_harmless(value.value_or(""))) {
            line_.notes.push_back(name + " has no effect: " + std::string(foreign->text));
            return;
        }
        throw UsageError("runnel has no " + name + ": " + std::string(foreign->text));
    }

    Arguments waiting_;  // the next one last
    const Command &command_;
    CommandLine line_;
};

}  // namespace

CommandLine parse_command_line(const Arguments &arguments, const Command &command) {
    return Reader(arguments, command).read();
}

}  // namespace runnel::commands
