#include "engine/commands/chat/history_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <span>
#include <system_error>

#include "engine/commands/io.h"
#include "gguf/output_file.h"

namespace runnel::commands {
namespace {

namespace fs = std::filesystem;

// Opens or creates the file and locks it; -1 on failure. O_NONBLOCK: a named pipe must not block the chat.
Descriptor open_locked(const fs::path &path) {
    constexpr int kTries = 100;
    for (int i = 0; i < kTries && !path.empty(); ++i) {
        Descriptor file(
            open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600),
            true);
        struct stat opened {
        }, named{};
        if (file.get() < 0 || fstat(file.get(), &opened) != 0 || !S_ISREG(opened.st_mode)) break;
        if (flock(file.get(), LOCK_EX) != 0) break;
        // Another chat may have replaced the file while this one waited for the lock.
        if (stat(path.c_str(), &named) != 0 || named.st_ino != opened.st_ino || named.st_dev != opened.st_dev)
            continue;
        fchmod(file.get(), 0600);
        return file;
    }
    return Descriptor(-1, false);
}

constexpr std::string_view kFormat = "_HiStOrY_V2_\n";

bool is_octal(std::string_view digits) {
    return digits.size() == 3 && digits[0] >= '0' && digits[0] <= '3' &&
           std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '7'; });
}

// Decodes what follows a backslash: the byte that it means, and the length of the escape.
std::pair<char, size_t> escaped(std::string_view rest) {
    if (is_octal(rest.substr(0, 3)))
        return {static_cast<char>((rest[0] - '0') * 64 + (rest[1] - '0') * 8 + (rest[2] - '0')), 3};
    if (rest.starts_with("M-") && rest.size() > 2) return {static_cast<char>(rest[2] | 0x80), 3};
    if (rest.starts_with("M^") && rest.size() > 2)
        return {static_cast<char>((rest[2] == '?' ? 0x7F : rest[2] & 0x1F) | 0x80), 3};
    if (rest.starts_with("^") && rest.size() > 1)
        return {static_cast<char>(rest[1] == '?' ? 0x7F : rest[1] & 0x1F), 2};
    constexpr std::string_view kLetters = "nrtsabvfE0", kBytes{"\n\r\t \a\b\v\f\x1b\0", 10};
    const size_t known = rest.empty() ? std::string_view::npos : kLetters.find(rest[0]);
    if (known != std::string_view::npos) return {kBytes[known], 1};
    return {rest.empty() ? '\\' : rest[0], rest.empty() ? 0 : 1};
}

}  // namespace

bool keeps_history() {
    const char *no = std::getenv("RUNNEL_NO_HISTORY");
    return !no || !*no || std::strcmp(no, "0") == 0;
}

fs::path history_path() {
    if (!keeps_history()) return {};
    fs::path directory;
    if (const char *state = std::getenv("XDG_STATE_HOME"); state && *state == '/')
        directory = state;
    else if (const char *home = std::getenv("HOME"); home && *home == '/')
        directory = fs::path(home) / ".local" / "state";
    else
        return {};
    directory /= "runnel";
    std::error_code error;
    if (fs::create_directories(directory, error)) fs::permissions(directory, fs::perms::owner_all, error);
    return directory / "history";
}

std::string history_line(std::string_view entry) {
    std::string line;
    for (const char c : entry) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte > ' ' && byte != 0x7F && c != '\\')
            line += c;
        else
            line += {'\\', static_cast<char>('0' + byte / 64), static_cast<char>('0' + byte / 8 % 8),
                     static_cast<char>('0' + byte % 8)};
    }
    return line;
}

std::string history_entry(std::string_view line) {
    std::string entry;
    for (size_t i = 0; i < line.size(); ++i) {
        if (line[i] != '\\') {
            entry += line[i];
            continue;
        }
        const auto found = escaped(line.substr(i + 1));
        entry += found.first;
        i += found.second;
    }
    return entry;
}

std::vector<std::string> HistoryFile::load(size_t most) const {
    const Descriptor file = open_locked(path_);
    if (file.get() < 0) return {};
    std::string text;
    try {
        text = read_all(path_.native(), -1, nullptr, InputFile::Replaceable::Yes);
    } catch (const std::runtime_error &) {
        return {};
    }
    std::vector<std::string_view> lines;
    for (std::string_view rest = text; !rest.empty();) {
        const size_t end = std::min(rest.find('\n'), rest.size());
        if (end > 0 && rest.substr(0, end + 1) != kFormat) lines.push_back(rest.substr(0, end));
        rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    const bool too_long = lines.size() > 2 * most;
    if (lines.size() > most) lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(most));
    std::vector<std::string> entries;
    for (const std::string_view line : lines) entries.push_back(history_entry(line));
    if (!too_long) return entries;
    try {
        std::string newest(kFormat);
        for (const std::string_view line : lines) (newest += line) += '\n';
        gguf::OutputFile anew(path_, {.overwrite = true, .is_private = true});
        anew.write(std::as_bytes(std::span(newest)));
        anew.commit();
    } catch (const gguf::WriteError &) {
        // The shorter file cannot be written, so the long one stays.
    }
    return entries;
}

void HistoryFile::append(std::string_view entry) const {
    const Descriptor file = open_locked(path_);
    if (file.get() < 0) return;
    std::string text;
    struct stat status {};
    if (fstat(file.get(), &status) == 0) {
        char last = '\n';
        if (status.st_size == 0)
            text = kFormat;
        else if (pread(file.get(), &last, 1, status.st_size - 1) == 1 && last != '\n')
            text = "\n";  // ends a line that a killed chat or a full disk left incomplete
    }
    Output(file.get(), "history").try_write(text + history_line(entry) + "\n");
}

}  // namespace runnel::commands
