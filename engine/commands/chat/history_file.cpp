#include "engine/commands/chat/history_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <span>
#include <system_error>

#include "engine/commands/io.h"
#include "gguf/output_file.h"

namespace runnel::commands {
namespace {

namespace fs = std::filesystem;
using OwnedHistory = std::unique_ptr<History, void (*)(History *)>;

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

// The history as libedit saves it: a line that names the format, then a line per entry. Empty on failure.
// (libedit sets the mode of the file that it writes to, so a stream in memory is not enough.)
std::string written(History *history) {
    const int fd = memfd_create("history", MFD_CLOEXEC);
    const std::unique_ptr<std::FILE, int (*)(std::FILE *)> file(fd < 0 ? nullptr : fdopen(fd, "w+"),
                                                                std::fclose);
    HistEvent event;
    if (!file || ::history(history, &event, H_SAVE_FP, file.get()) < 0 || std::fflush(file.get()) != 0)
        return {};
    std::rewind(file.get());
    std::string text;
    char part[4096];
    for (size_t n; (n = std::fread(part, 1, sizeof part, file.get())) > 0;) text.append(part, n);
    return text;
}

int64_t lines_of(const fs::path &path) {
    try {
        const std::string text = read_all(path.native(), -1, nullptr, InputFile::Replaceable::Yes);
        return std::count(text.begin(), text.end(), '\n');
    } catch (const std::runtime_error &) {
        return 0;
    }
}

}  // namespace

fs::path history_path() {
    const char *no = std::getenv("RUNNEL_NO_HISTORY");
    if (no && *no && std::strcmp(no, "0") != 0) return {};
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

void HistoryFile::load(History *history, int most) const {
    const Descriptor file = open_locked(path_);
    if (file.get() < 0) return;
    HistEvent event;
    ::history(history, &event, H_LOAD, path_.c_str());
    if (lines_of(path_) <= 2 * int64_t{most}) return;
    try {
        const std::string newest = written(history);
        if (newest.empty()) return;
        gguf::OutputFile anew(path_, {.overwrite = true, .is_private = true});
        anew.write(std::as_bytes(std::span(newest)));
        anew.commit();
    } catch (const gguf::WriteError &) {
        // The file keeps its length.
    }
}

void HistoryFile::append(const std::string &line) const {
    const Descriptor file = open_locked(path_);
    const OwnedHistory one(file.get() < 0 ? nullptr : history_init(), history_end);
    if (!one) return;
    HistEvent event;
    history(one.get(), &event, H_SETSIZE, 1);
    history(one.get(), &event, H_ENTER, line.c_str());
    std::string text = written(one.get());
    struct stat status {};
    if (fstat(file.get(), &status) == 0 && status.st_size > 0) text.erase(0, text.find('\n') + 1);
    Output(file.get(), "history").try_write(text);
}

}  // namespace runnel::commands
