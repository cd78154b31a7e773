#include "engine/commands/chat/attachment.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "engine/commands/io.h"
#include "engine/text/utf8.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBlanks = " \t\r\n";

// A fence that is longer than every run of backticks in the text.
std::string fence_for(const std::string &text) {
    size_t longest = 2, run = 0;
    for (const char c : text) longest = std::max(longest, run = c == '`' ? run + 1 : 0);
    return std::string(longest + 1, '`');
}

bool is_file(const std::string &path) {
    std::error_code error;
    return !path.empty() && fs::is_regular_file(home_expanded(path), error);
}

}  // namespace

std::string home_expanded(const std::string &path) {
    const char *home = std::getenv("HOME");
    return path.starts_with("~/") && home && *home == '/' ? std::string(home) + path.substr(1) : path;
}

std::string regular_file(const std::string &path) {
    std::error_code error;
    const std::string whole = home_expanded(path);
    if (fs::exists(whole, error) && !fs::is_regular_file(whole, error))
        throw InputError(gguf::printable(path, 4096) +
                         " is not a regular file: pipes, devices and folders are not read");
    return whole;
}

Attachment read_attachment(const std::string &path) {
    const std::string text = read_all(home_expanded(path), -1);
    const std::string name = gguf::printable(path, 4096);
    if (text.find_first_not_of(kBlanks) == std::string::npos) throw InputError(name + " contains no text");
    if (text.find('\0') != std::string::npos || !text::is_valid_utf8(text))
        throw InputError(name + " is not text: it is not valid UTF-8");
    return {fs::path(path).filename().string(), text};
}

std::vector<std::string> named_files(std::string_view message) {
    std::vector<std::string> files;
    for (size_t at = message.find('@'); at != message.npos; at = message.find('@', at + 1)) {
        if (at > 0 && kBlanks.find(message[at - 1]) == kBlanks.npos) continue;
        std::string_view rest = message.substr(at + 1);
        const bool is_quoted = rest.starts_with('"');
        if (is_quoted) rest.remove_prefix(1);
        std::string path(rest.substr(0, is_quoted ? rest.find('"') : rest.find_first_of(kBlanks)));
        // The name may be followed by punctuation.
        while (!is_quoted && !is_file(path) && !path.empty() &&
               std::string_view(".,;:!?)").find(path.back()) != std::string_view::npos)
            path.pop_back();
        if (is_file(path) && std::find(files.begin(), files.end(), path) == files.end())
            files.push_back(path);
    }
    return files;
}

std::string with_attachments(std::span<const Attachment> files, const std::string &message) {
    if (files.size() == 1 && message.empty()) return files[0].text;
    std::string text;
    for (const Attachment &file : files) {
        const std::string fence = fence_for(file.text);
        text += file.name + ":\n" + fence + "\n" + file.text + (file.text.ends_with('\n') ? "" : "\n") +
                fence + "\n\n";
    }
    return text + message;
}

std::string described(const Attachment &file) {
    const auto lines = std::count(file.text.begin(), file.text.end(), '\n') + !file.text.ends_with('\n');
    return gguf::printable(file.name, 200) + " (" + std::to_string(lines) +
           (lines == 1 ? " line, " : " lines, ") + std::to_string(file.text.size()) + " bytes)";
}

}  // namespace runnel::commands
