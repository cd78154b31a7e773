#include "engine/commands/chat/chat_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include "engine/commands/chat/history_file.h"
#include "gguf/base/random_seed.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEnding = ".jsonl";
constexpr size_t kTitleBytes = 60;

// The beginning of a message as one line.
std::string title_of(const std::string &message) {
    std::string line = message.substr(0, 4 * kTitleBytes);
    std::replace(line.begin(), line.end(), '\n', ' ');
    return gguf::printable(line, kTitleBytes);
}

struct Loaded {
    Conversation conversation;
    std::string model;
    bool has_header = false;
    size_t damaged = 0;
    size_t whole = 0;  // bytes up to the last line end
};

void apply_line(const std::string &line, Loaded &loaded) {
    const Json entry = parse_json(line);
    const Json *model = text::find_member(entry, "model");
    if (text::find_member(entry, "runnel_chat")) loaded.has_header = true;
    if (model && model->is_string())
        loaded.model = model->get<std::string>();
    else
        loaded.conversation.apply(entry);
}

Loaded load(const fs::path &path) {
    Loaded loaded;
    const std::string text = read_all(path.native(), -1, nullptr, InputFile::Replaceable::Yes);
    for (size_t begin = 0; begin < text.size();) {
        const size_t end = text.find('\n', begin);
        if (end == std::string::npos) break;  // the last line is incomplete
        loaded.whole = end + 1;
        try {
            apply_line(text.substr(begin, end - begin), loaded);
        } catch (const std::runtime_error &) {  // JsonError, InputError
            ++loaded.damaged;
        }
        begin = end + 1;
        if (begin == text.size() || loaded.has_header) continue;
        break;
    }
    if (!loaded.has_header) throw InputError(gguf::printable(path.native(), 4096) + " is not a saved chat");
    return loaded;
}

std::string line_of(const Json &entry) {
    return dump(entry);
}

std::optional<SavedChat> summary(const fs::path &path, int64_t changed) try {
    const Loaded loaded = load(path);
    const Conversation &talk = loaded.conversation;
    SavedChat chat{path, talk.title(), loaded.model, talk.size()};
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    chat.seconds =
        std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::seconds>(now).count() - changed);
    if (chat.title.empty() && talk.size() > 0)
        chat.title = title_of(talk.at(talk.at(Conversation::kRoot).children.front()).message.content);
    return chat;
} catch (const std::runtime_error &) {
    return std::nullopt;
}

struct Candidate {
    timespec changed;
    fs::path path;
};

// The files of the folder, the newest first.
std::vector<Candidate> files_in(const fs::path &folder) {
    std::vector<Candidate> files;
    std::error_code error;
    if (folder.empty()) return files;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
        struct stat status {};
        const fs::path &path = entry->path();
        if (path.extension() == kEnding && lstat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode))
            files.push_back({status.st_mtim, path});
    }
    std::sort(files.begin(), files.end(), [](const Candidate &a, const Candidate &b) {
        return std::tuple(b.changed.tv_sec, b.changed.tv_nsec, b.path) <
               std::tuple(a.changed.tv_sec, a.changed.tv_nsec, a.path);
    });
    return files;
}

std::string reason() {
    return std::generic_category().message(errno);
}

}  // namespace

fs::path chats_folder() {
    const fs::path history = history_path();
    return history.empty() ? fs::path() : history.parent_path() / "chats";
}

std::vector<SavedChat> saved_chats(const fs::path &folder, size_t most) {
    std::vector<SavedChat> chats;
    for (const Candidate &file : files_in(folder)) {
        if (chats.size() == most) break;
        if (auto chat = summary(file.path, file.changed.tv_sec)) chats.push_back(std::move(*chat));
    }
    return chats;
}

std::optional<SavedChat> find_chat(const fs::path &folder, const std::string &name) {
    const bool is_number =
        !name.empty() && name.size() < 7 && name.find_first_not_of("0123456789") == name.npos;
    const size_t number = is_number ? std::stoul(name) : 0;
    const std::vector<SavedChat> chats = saved_chats(folder, is_number ? number : SIZE_MAX);
    if (is_number)
        return number >= 1 && number <= chats.size() ? std::optional(chats[number - 1]) : std::nullopt;
    for (const SavedChat &chat : chats)
        if (chat.title == name || chat.path.stem() == name) return chat;
    return std::nullopt;
}

std::optional<SavedChat> last_chat(const fs::path &folder, const std::string &model) {
    for (const Candidate &file : files_in(folder))
        if (auto chat = summary(file.path, file.changed.tv_sec);
            chat && (model.empty() || chat->model == model))
            return chat;
    return std::nullopt;
}

ChatFile::ChatFile(fs::path folder, std::string model) : folder_(std::move(folder)) {
    if (!folder_.empty()) waiting_ = line_of({{"runnel_chat", 1}, {"model", std::move(model)}});
}

ChatFile::ChatFile(const SavedChat &chat, std::string model, Conversation &into)
    : folder_(chat.path.parent_path()) {
    Descriptor file(open(chat.path.c_str(), O_RDWR | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC), true);
    is_copy_ = file.get() >= 0 && flock(file.get(), LOCK_EX | LOCK_NB) != 0;
    const Loaded loaded = load(chat.path);
    damaged_ = loaded.damaged;
    for (const Json &entry : loaded.conversation.entries()) into.apply(entry);
    if (file.get() < 0 || is_copy_) {  // file.get() < 0: the file is read-only, too
        is_copy_ = true;
        waiting_ = line_of({{"runnel_chat", 1}, {"model", std::move(model)}});
        for (const Json &entry : into.entries()) waiting_ += line_of(entry);
        try {
            create();
        } catch (const OutputError &) {
            folder_.clear();
        }
        return;
    }
    // Cut off an incomplete last line, so that it does not become the beginning of the next one.
    struct stat status {};
    if (fstat(file.get(), &status) == 0 && static_cast<size_t>(status.st_size) > loaded.whole &&
        ftruncate(file.get(), static_cast<off_t>(loaded.whole)) != 0)
        throw InputError(gguf::printable(chat.path.native(), 4096) + ": " + reason());
    file_.emplace(std::move(file));
    path_ = chat.path;
    if (loaded.model == model) return;
    try {
        append({{"model", std::move(model)}});
    } catch (const OutputError &) {  // saves() is false now
    }
}

// Creates the chat's own file, named by the time.
void ChatFile::create() {
    std::error_code error;
    if (fs::create_directories(folder_, error)) fs::permissions(folder_, fs::perms::owner_all, error);
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    localtime_r(&now, &local);
    constexpr int kTries = 100;
    for (int i = 0; i < kTries && !file_; ++i) {
        char name[64];
        const size_t length = std::strftime(name, sizeof name, "%Y-%m-%d-%H%M%S", &local);
        std::snprintf(name + length, sizeof name - length, "-%04x",
                      static_cast<unsigned>(base::random_seed() & 0xffff));
        path_ = folder_ / (name + std::string(kEnding));
        const int fd =
            open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd >= 0) file_.emplace(fd, true);
        if (fd < 0 && errno != EEXIST) break;
    }
    if (!file_) throw OutputError(gguf::printable(path_.native(), 4096) + ": " + reason());
    flock(file_->get(), LOCK_EX | LOCK_NB);
    try {
        write(std::exchange(waiting_, {}));
    } catch (const OutputError &) {
        unlink(path_.c_str());
        throw;
    }
    const Descriptor folder(open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC), true);
    if (folder.get() >= 0) fsync(folder.get());
}

void ChatFile::write(const std::string &lines) {
    struct stat before {};
    fstat(file_->get(), &before);
    try {
        Output(file_->get(), gguf::printable(path_.native(), 4096)).write(lines);
        if (fsync(file_->get()) != 0)
            throw OutputError(gguf::printable(path_.native(), 4096) + ": " + reason());
    } catch (const OutputError &) {
        [[maybe_unused]] const int cut = ftruncate(file_->get(), before.st_size);
        throw;
    }
}

void ChatFile::append(const Json &entry) {
    if (folder_.empty()) return;
    try {
        if (file_) return write(line_of(entry));
        waiting_ += line_of(entry);
        if (text::find_member(entry, "role")) create();
    } catch (const OutputError &) {
        folder_.clear();  // so that the error is reported only once
        throw;
    }
}

}  // namespace runnel::commands
