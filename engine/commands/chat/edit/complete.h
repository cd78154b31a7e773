// The completions of Tab: commands, settings, files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace runnel::commands {

struct CompletionNames {
    std::vector<std::string> commands;  // "/save"
    std::vector<std::string> settings;  // after "/set "
};

struct Completion {
    size_t begin = 0;                     // where the word begins in the text
    std::vector<std::string> candidates;  // for the word, sorted; folders end with '/'
    // The longest common beginning of all candidates, at least the word itself. Begins with a quotation mark if a
    // file after '@' must be quoted.
    std::string common;
    std::string end;  // what follows a sole candidate: a blank, unless it is a folder
};

// Completes the text before the cursor: a command at its beginning; a setting after "/set "; the name of a file after
// other commands, and after an '@' at the beginning of a word (in quotation marks if it has blanks). "~/" is the home
// folder. Names that are not printable are left out. At most 1,000 candidates.
Completion complete(std::string_view text, const CompletionNames &names);

}  // namespace runnel::commands
