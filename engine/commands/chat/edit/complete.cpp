#include "engine/commands/chat/edit/complete.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "engine/commands/chat/attachment.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

namespace fs = std::filesystem;
constexpr size_t kMost = 1000;

void add_names(Completion &completion, const std::vector<std::string> &names, std::string_view word) {
    for (const std::string &name : names)
        if (name.starts_with(word)) completion.candidates.push_back(name);
}

void add_files(Completion &completion, std::string_view word) {
    const size_t slash = word.rfind('/');
    const std::string folder(word.substr(0, slash == std::string_view::npos ? 0 : slash + 1));
    const std::string_view part = word.substr(folder.size());
    std::error_code error;
    for (fs::directory_iterator entry(folder.empty() ? "." : home_expanded(folder), error), end;
         !error && entry != end && completion.candidates.size() < kMost; entry.increment(error)) {
        const std::string name = entry->path().filename().string();
        if (!name.starts_with(part) || (part.empty() && name.starts_with('.'))) continue;
        if (gguf::printable(name, name.size() + 1) != name) continue;
        std::error_code unknown;
        completion.candidates.push_back(folder + name + (entry->is_directory(unknown) ? "/" : ""));
    }
}

// Where the word after '@' begins, which may be quoted and then has blanks; npos if the line does not end with one.
size_t file_word(std::string_view line) {
    for (size_t at = line.rfind('@'); at != line.npos; at = at == 0 ? line.npos : line.rfind('@', at - 1)) {
        if (at > 0 && line[at - 1] != ' ' && line[at - 1] != '\t') continue;
        const std::string_view word = line.substr(at + 1);
        const bool is_quoted = word.starts_with('"');
        const bool ends = is_quoted ? word.find('"', 1) != word.npos : word.find_first_of(" \t") != word.npos;
        if (!ends) return at + 1;
    }
    return std::string_view::npos;
}

}  // namespace

Completion complete(std::string_view text, const CompletionNames &names) {
    Completion completion;
    const size_t newline = text.rfind('\n');
    const std::string_view line = text.substr(newline + 1);
    const size_t blank = line.find(' '), last = line.find_last_of(" \t");
    const bool is_command = newline == std::string_view::npos && line.starts_with('/');
    const size_t file = file_word(line);
    const bool names_file = file != std::string_view::npos;
    std::string_view word = line.substr(last + 1);
    if (is_command && blank == std::string_view::npos) {
        add_names(completion, names.commands, word);
    } else if (is_command && line.starts_with("/set ")) {
        if (blank == last) add_names(completion, names.settings, word);
    } else if (names_file) {
        word = line.substr(file);
        add_files(completion, word.substr(word.starts_with('"') ? 1 : 0));
        std::erase_if(completion.candidates, [](const auto &name) { return name.find('"') != name.npos; });
    } else if (is_command) {
        word = line.substr(line.find_first_not_of(' ', blank) == std::string_view::npos
                               ? line.size()
                               : line.find_first_not_of(' ', blank));  // a name may have blanks
        add_files(completion, word);
    }
    completion.begin = text.size() - word.size();
    std::sort(completion.candidates.begin(), completion.candidates.end());
    completion.common = completion.candidates.empty() ? std::string(word) : completion.candidates.front();
    for (const std::string &candidate : completion.candidates) {
        const auto [a, b] = std::mismatch(completion.common.begin(), completion.common.end(),
                                          candidate.begin(), candidate.end());
        completion.common.erase(a, completion.common.end());
    }
    // Cuts off an incomplete character.
    while (!completion.common.empty() && completion.common.size() > word.size() &&
           gguf::printable(completion.common, completion.common.size() + 1) != completion.common)
        completion.common.pop_back();
    if (completion.candidates.empty()) return completion;
    const bool is_quoted =
        names_file && (word.starts_with('"') || completion.common.find_first_of(" \t") != std::string::npos);
    if (is_quoted) completion.common.insert(0, "\"");
    completion.end = completion.common.ends_with('/') ? "" : is_quoted ? "\" " : " ";
    return completion;
}

}  // namespace runnel::commands
