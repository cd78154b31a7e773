#include "engine/commands/cli/help.h"

#include <algorithm>

namespace runnel::commands {
namespace {

constexpr size_t kColumn = 30;  // where explanations start
constexpr char kGlue = '\1';    // stands for a blank at which no line breaks

std::string entry(const std::string &left, std::string explanation) {
    constexpr std::string_view kDefault = "(default: ";
    if (const size_t at = explanation.find(kDefault); at != std::string::npos)
        explanation[at + kDefault.size() - 1] = kGlue;
    std::string line = left;
    if (line.size() + 2 > kColumn)
        line += "\n" + std::string(kColumn, ' ');
    else
        line += std::string(kColumn - line.size(), ' ');
    return line + wrapped(explanation, kColumn) + "\n";
}

}  // namespace

std::string wrapped(std::string_view text, size_t indent, size_t width) {
    std::string result;
    size_t column = indent;
    for (size_t from = 0; from < text.size();) {
        const size_t end = std::min(text.find(' ', from), text.size());
        const std::string_view word = text.substr(from, end - from);
        if (column > indent && column + 1 + word.size() > width) {
            result += "\n" + std::string(indent, ' ');
            column = indent;
        } else if (column > indent) {
            result += ' ';
            ++column;
        }
        result += word;
        std::replace(result.end() - static_cast<std::ptrdiff_t>(word.size()), result.end(), kGlue, ' ');
        column += word.size();
        from = end + 1;
    }
    return result;
}

std::string spellings(const Option &option, bool all) {
    const std::string main = "--" + std::string(option.name());
    const auto is_short = [](const std::string &name) { return !name.starts_with("--"); };
    const auto first_short = std::ranges::find_if(option.names, is_short);
    std::string text;
    if (first_short == option.names.end())
        text = "      ";
    else
        text = "  " + *first_short + ", ";
    text += main;
    if (all)
        for (const std::string &name : option.names)
            if (name != main && (first_short == option.names.end() || name != *first_short))
                text += ", " + name;
    return text + (option.is_flag() ? "" : " " + option.value);
}

std::string explanation(const Option &option) {
    std::string text = option.help;
    if (!option.choices.empty() && option.choices.size() <= 8 &&
        std::ranges::any_of(option.choices,
                            [&](const std::string &word) { return text.find(word) == text.npos; }))
        text += ": " + listed(option.choices);
    if (!option.fallback.empty()) text += " (default: " + option.fallback + ")";
    return text;
}

std::string overview() {
    std::string text = "runnel: language models from GGUF files\n\n";
    for (const CommandEntry &known : command_entries()) {
        const Command command = known.make();
        text += entry("  runnel " + std::string(command.name) + " " + std::string(command.usage),
                      std::string(command.summary));
    }
    return text +
           "\n"
           "runnel COMMAND --help explains a command, --help-all also its rare options.\n"
           "MODEL is a GGUF file, a folder with one, a name that runnel list shows, or\n"
           "hf.co/USER/REPO[:QUANT], which is downloaded first.\n"
           "runnel FILE.gguf means runnel chat FILE.gguf.\n"
           "Options are also RUNNEL_NAME in the environment and lines of\n"
           "~/.config/runnel/config.toml.\n";
}

std::string help(const Command &command, bool all) {
    std::string text = "runnel " + std::string(command.name) + " " + std::string(command.usage) +
                       (command.usage.empty() ? "[OPTIONS]" : " [OPTIONS]") + "\n\n" +
                       wrapped(command.description, 0) + "\n";
    size_t hidden = 0;
    for (const Group group : kGroups) {
        std::string lines;
        for (const Option &option : command.options.options()) {
            if (option.group != group) continue;
            if (!all && option.is_rare) {
                ++hidden;
                continue;
            }
            std::string left = spellings(option, all);
            if (left.size() > 80) left = wrapped(left.substr(2), 6).insert(0, "  ");
            lines += entry(left, explanation(option));
        }
        if (!lines.empty()) text += "\n" + std::string(title(group)) + "\n" + lines;
    }
    if (!command.examples.empty()) text += "\nExamples\n";
    for (const std::string_view example : command.examples) text += "  runnel " + std::string(example) + "\n";
    if (hidden > 0)
        text += "\n" + std::to_string(hidden) + " more options: runnel " + std::string(command.name) +
                " --help-all\n";
    return text;
}

}  // namespace runnel::commands
