#include "engine/commands/cli/completion.h"

#include <memory>

#include "engine/commands/cli/help.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

// Whether a shell should complete the option's value as a file name.
bool takes_file(const Option &option) {
    return option.value == "FILE" || option.value == "MODEL";
}

std::string joined(const std::vector<std::string> &words) {
    std::string text;
    for (const std::string &word : words) text += (text.empty() ? "" : " ") + word;
    return text;
}

// `text` in single quotes for a shell. is_fish: a backslash escapes within them; in other shells it does not.
std::string shell_quoted(std::string_view text, bool is_fish) {
    std::string result = "'";
    for (const char c : text) {
        if (is_fish && (c == '\'' || c == '\\')) result += '\\';
        if (!is_fish && c == '\'')
            result += "'\\''";
        else
            result += c;
    }
    return result + "'";
}

std::string bash_script() {
    std::string names, options, words, files;
    for (const CommandEntry &entry : command_entries()) {
        Common common;
        const Command command = with_common_options(entry.make(), common);
        names += std::string(names.empty() ? "" : " ") + std::string(entry.name);
        std::string all;
        for (const Option &option : command.options.options()) {
            all += (all.empty() ? "" : " ") + joined(option.names);
            std::string pattern;
            for (const std::string &name : option.names)
                pattern += (pattern.empty() ? "" : "|") + std::string(entry.name) + ":" + name;
            if (!option.choices.empty())
                words += "        " + pattern + ") words='" + joined(option.choices) + "' ;;\n";
            else if (takes_file(option))
                files += "        " + pattern + ") files=1 ;;\n";
            else if (!option.is_flag())
                files += "        " + pattern + ") return ;;\n";
        }
        options += "        " + std::string(entry.name) + ") options='" + all + "' ;;\n";
    }
    return "# bash completion of runnel: source this, or install it in bash-completion/completions/runnel\n"
           "_runnel() {\n"
           "    local word=${COMP_WORDS[COMP_CWORD]} at=$((COMP_CWORD - 1)) command=${COMP_WORDS[1]}\n"
           "    local words= files= options= before\n"
           "    COMPREPLY=()\n"
           "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
           "        mapfile -t COMPREPLY < <(compgen -W '" +
           names +
           " help --help --version' -- \"$word\")\n"
           "        [ -z \"$word\" ] || [ ${#COMPREPLY[@]} -eq 0 ] || return\n"
           "        compopt -o filenames -o default 2>/dev/null\n"
           "        mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -X '!*.gguf' -- \"$word\"; "
           "compgen "
           "-d -- \"$word\")\n"
           "        return\n"
           "    fi\n"
           "    # --option=value arrives as three words.\n"
           "    [ \"$word\" != = ] || { word=; at=$((at + 1)); }\n"
           "    [ \"${COMP_WORDS[at]}\" != = ] || at=$((at - 1))\n"
           "    before=${COMP_WORDS[at]}\n"
           "    # A model in place of a command is a chat with it.\n"
           "    case ' " +
           names +
           " help ' in *\" $command \"*) ;; *) command=chat ;; esac\n"
           "    case $command:$before in\n"
           "        completion:completion) words='bash zsh fish man' ;;\n"
           "        help:help) words='" +
           names + "' ;;\n" + words + files +
           "    esac\n"
           "    case $command in\n" +
           options +
           "    esac\n"
           "    if [ -n \"$words\" ]; then\n"
           "        mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
           "    elif [ -z \"$files\" ] && [[ $word == -* ]]; then\n"
           "        mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$word\")\n"
           "    else\n"
           "        # (default: for words with quotes or backslashes, which compgen does not understand.)\n"
           "        compopt -o filenames -o default 2>/dev/null\n"
           "        mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
           "    fi\n"
           "}\n"
           "complete -F _runnel runnel\n";
}

// Escapes colons and brackets, which have a meaning in zsh's descriptions.
std::string zsh_text(std::string_view text) {
    std::string result;
    for (const char c : text) {
        if (c == ':' || c == '[' || c == ']') result += '\\';
        result += c;
    }
    return result;
}

std::string zsh_script() {
    std::string commands, all_cases, chat;
    for (const CommandEntry &entry : command_entries()) {
        Common common;
        const Command command = with_common_options(entry.make(), common);
        const std::string name(entry.name);
        commands +=
            "        " + shell_quoted(zsh_text(name) + ":" + std::string(command.summary), false) + "\n";
        // A model in place of a command is a chat with it, so that chat is the last case, for all other words.
        std::string &cases = name == "chat" ? chat : all_cases;
        cases += "        " + std::string(name == "chat" ? "*" : name) + ") _arguments \\\n";
        for (const Option &option : command.options.options()) {
            std::string action;
            if (!option.choices.empty())
                action = ":" + zsh_text(option.value) + ":(" + joined(option.choices) + ")";
            else if (takes_file(option))
                action = ":" + zsh_text(option.value) + ":_files";
            else if (!option.is_flag())
                action = ":" + zsh_text(option.value) + ":";
            for (const std::string &spelled : option.names)
                cases += "            " +
                         shell_quoted("*" + spelled + "[" + zsh_text(option.help) + "]" + action, false) +
                         " \\\n";
        }
        if (command.name == "completion")
            cases += "            '1:shell:(bash zsh fish man)' ;;\n";
        else
            cases += "            '*:file:_files' ;;\n";
    }
    return "#compdef runnel\n"
           "# zsh completion of runnel: install it as _runnel in a folder of $fpath\n"
           "_runnel() {\n"
           "    local -a commands\n"
           "    commands=(\n" +
           commands +
           "    )\n"
           "    if (( CURRENT == 2 )); then\n"
           "        [[ $PREFIX != -* ]] || { compadd -- --help --version; return }\n"
           "        _describe command commands\n"
           "        _files -g '*.gguf'\n"
           "        return\n"
           "    fi\n"
           "    shift words\n"
           "    (( CURRENT-- ))\n"
           "    case $words[1] in\n"
           "        help) _describe command commands ;;\n" +
           all_cases + chat +
           "    esac\n"
           "}\n"
           "# From $fpath this file is the function, called for the first completion; otherwise it was "
           "sourced.\n"
           "if [[ ${funcstack[1]} == _runnel ]]; then _runnel \"$@\"; else compdef _runnel runnel; fi\n";
}

std::string fish_script() {
    std::string names;
    for (const CommandEntry &entry : command_entries()) names += " " + std::string(entry.name);
    std::string text =
        "# fish completion of runnel: install it as completions/runnel.fish\n"
        "# Whether the command is this one. A model in place of a command is a chat with it.\n"
        "function __runnel_command\n"
        "    set -l words (commandline -opc)\n"
        "    test (count $words) -gt 1; or return 1\n"
        "    contains -- $words[2] help" +
        names +
        "; or set words[2] chat\n"
        "    test $words[2] = $argv[1]\n"
        "end\n"
        "complete -c runnel -n __fish_use_subcommand -l help -d 'how to use runnel'\n"
        "complete -c runnel -n __fish_use_subcommand -l version -d 'the version'\n"
        "complete -c runnel -n __fish_use_subcommand -a help -d 'help for a command'\n";
    for (const CommandEntry &entry : command_entries()) {
        Common common;
        const Command command = with_common_options(entry.make(), common);
        const std::string name(entry.name);
        text += "complete -c runnel -n __fish_use_subcommand -a " + name + " -d " +
                shell_quoted(command.summary, true) + "\n";
        for (const Option &option : command.options.options()) {
            text += "complete -c runnel -n '__runnel_command " + name + "'";
            for (const std::string &spelled : option.names) {
                if (spelled.starts_with("--"))
                    text += " -l " + spelled.substr(2);
                else
                    text += (spelled.size() == 2 ? " -s " : " -o ") + spelled.substr(1);
            }
            if (!option.choices.empty())
                text += " -x -a '" + joined(option.choices) + "'";
            else if (takes_file(option))
                text += " -r -F";
            else if (!option.is_flag())
                text += " -x";
            text += " -d " + shell_quoted(option.help, true) + "\n";
        }
    }
    return text + "complete -c runnel -n '__runnel_command help' -f -a '" + names.substr(1) +
           "'\n"
           "complete -c runnel -n '__runnel_command completion' -f -a 'bash zsh fish man'\n";
}

// Roff: a line that begins with a dot or an apostrophe is a request, and a backslash is an escape.
std::string roff(std::string_view text) {
    std::string result;
    for (const char c : text) {
        if ((result.empty() || result.back() == '\n') && (c == '.' || c == '\'')) result += "\\&";
        if (c == '\\')
            result += "\\e";
        else if (c == '-')
            result += "\\-";
        else
            result += c;
    }
    return result;
}

std::string manual() {
    std::string text =
        ".TH RUNNEL 1\n.SH NAME\nrunnel \\- run language models from GGUF files\n.SH SYNOPSIS\n"
        ".B runnel\nCOMMAND [ARGUMENTS] [OPTIONS]\n.SH DESCRIPTION\n"
        "Runs a language model from a GGUF file, on the CPU or a GPU: a prompt through a pipe, a chat in the "
        "terminal, many prompts in a batch. The result goes to standard output, everything else to standard "
        "error.\n";
    for (const CommandEntry &entry : command_entries()) {
        Common common;
        const Command command = with_common_options(entry.make(), common);
        text += ".SH \"runnel " + roff(command.name) + " " + roff(command.usage) + "\"\n" +
                roff(command.description) + "\n";
        for (const Group group : kGroups) {
            std::string lines;
            for (const Option &option : command.options.options())
                if (option.group == group) {
                    std::string names;
                    for (const std::string &name : option.names) names += (names.empty() ? "" : ", ") + name;
                    lines += ".TP\n\\fB" + roff(names) + "\\fR" +
                             (option.is_flag() ? "" : " \\fI" + roff(option.value) + "\\fR") + "\n" +
                             roff(explanation(option)) + "\n";
                }
            if (!lines.empty()) text += ".SS \"" + std::string(title(group)) + "\"\n" + lines;
        }
        for (const std::string_view example : command.examples)
            text += ".PP\n.RS\nrunnel " + roff(example) + "\n.RE\n";
    }
    return text +
           ".SH \"EXIT STATUS\"\n0 done, 1 failed while running, 2 bad usage, 3 bad model file, 4 does not "
           "fit in "
           "memory, 5 bad input, 130 interrupted.\n"
           ".SH ENVIRONMENT\nEvery option is a variable: RUNNEL_CTX_SIZE for \\-\\-ctx\\-size. RUNNEL_MODEL "
           "is the "
           "model if none is named, RUNNEL_CONFIG the configuration file (empty: none).\n"
           ".SH FILES\n~/.config/runnel/config.toml: options for all commands, then sections [run], [chat], "
           "... "
           "for one of them, and [models] with short names: q8 = \"path/to/model.gguf\".\n";
}

}  // namespace

std::string completion_script(std::string_view shell) {
    if (shell == "bash") return bash_script();
    if (shell == "zsh") return zsh_script();
    if (shell == "fish") return fish_script();
    if (shell == "man") return manual();
    throw UsageError("completion for " + gguf::quoted(shell) +
                     ": bash, zsh, fish, or man for the manual page");
}

Command completion_command() {
    Command command{
        .name = "completion",
        .usage = "SHELL",
        .summary = "completion for bash, zsh or fish; the man page",
        .description = "Prints the completion script of a shell, or the manual page (man).",
        .examples = {"completion bash > ~/.local/share/bash-completion/completions/runnel",
                     "completion fish > ~/.config/fish/completions/runnel.fish", "completion man > runnel.1"},
        .model = Command::Model::None,
        .takes_text = true};
    command.call = [](const Words &words, Io &io) {
        if (!words.text) throw UsageError("which shell? runnel completion bash, zsh or fish");
        io.out.write(completion_script(*words.text));
        return exit_code::kDone;
    };
    return command;
}

}  // namespace runnel::commands
