// Options of llama.cpp, ollama and mistral.rs that runnel lacks or names differently, and what to do instead,
// so that command lines from their documentation work or get a helpful answer.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "engine/commands/arguments.h"

namespace runnel::commands {

struct Foreign {
    enum class Meaning {
        Same,     // `text`: the arguments to use instead, with "$" for the value
        Nothing,  // accepted and ignored; `text` says why
        Missing,  // rejected; `text` says what to use
    };

    std::string_view names;  // separated by blanks
    std::string_view
        values;  // "": takes none; "*": takes one; else a value follows only if it is one of these
    Meaning meaning;
    std::string_view text;
    std::string_view harmless = {};  // of a missing option: values that change nothing
    std::string_view commands = {};  // empty: all

    bool takes(std::string_view value) const;
    bool is_harmless(std::string_view value) const;
    Arguments replacement(const std::string &value) const;
};

// Null when the option is unknown. `name` as typed: "-fa", "--flash-attn".
const Foreign *find_foreign(std::string_view name, std::string_view command);

std::span<const Foreign> foreign_options();

// What to use for a command of another program ("serve", "show"); empty if unknown.
std::string_view foreign_command(std::string_view name);

}  // namespace runnel::commands
