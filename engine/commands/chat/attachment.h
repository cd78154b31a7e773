// Text files as parts of a message.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace runnel::commands {

struct Attachment {
    std::string name;  // the file's name without its folder
    std::string text;
};

// "~/x" with the home directory; any other path as it is.
std::string home_expanded(const std::string &path);
// home_expanded(path), after a check: throws InputError for a pipe, a device or a folder, because reading one might
// never end and Ctrl-C stops only answers. The file need not exist.
std::string regular_file(const std::string &path);

// Throws UsageError if the file cannot be opened, InputError if it is empty or not UTF-8 text.
Attachment read_attachment(const std::string &path);

// The files that a message names as @FILE or @"FILE WITH BLANKS", at the beginning of a word. Only existing
// regular files count, because @ also begins user names.
std::vector<std::string> named_files(std::string_view message);

// The files, each under its name and between fences, then the message. For one file without a message: the
// file's text.
std::string with_attachments(std::span<const Attachment> files, const std::string &message);

// "notes.txt (12 lines, 431 bytes)".
std::string described(const Attachment &file);

}  // namespace runnel::commands
