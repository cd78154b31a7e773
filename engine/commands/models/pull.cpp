#include "engine/commands/models/pull.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <thread>

#include "engine/commands/figures.h"
#include "engine/commands/models/file_names.h"
#include "engine/commands/models/hub_layout.h"
#include "engine/commands/models/stores.h"
#include "engine/decode/stop_request.h"
#include "gguf/base/timer.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

// The progress of one file on stderr: a changing line on a terminal, otherwise one line at the beginning.
class PullProgress {
  public:
    PullProgress(Io &io, std::string name, uint64_t bytes)
        : io_(io), name_(gguf::printable(name.substr(name.rfind('/') + 1), 60)), bytes_(bytes) {
        if (!io_.err.is_terminal()) io_.note("downloading " + name_ + ", " + size_text(bytes, 1));
    }
    ~PullProgress() {
        if (drawn_) io_.progress("\r\x1b[K");
    }
    PullProgress(const PullProgress &) = delete;
    PullProgress &operator=(const PullProgress &) = delete;

    void update(uint64_t done, bool is_hashing) {
        if (!io_.err.is_terminal()) return;
        const auto now = base::Clock::now();
        samples_.emplace_back(now, done);
        while (samples_.size() > 2 && base::seconds_between(samples_.front().first, now) > 5)
            samples_.pop_front();
        const double seconds = base::seconds_between(samples_.front().first, now);
        const uint64_t first = std::min(samples_.front().second, done);
        const double rate = seconds > 0 ? static_cast<double>(done - first) / seconds : 0;
        drawn_ = true;
        io_.progress("\r" + pull_line(is_hashing ? "checking " + name_ : name_, done, bytes_, rate) +
                     "\x1b[K");
    }

  private:
    Io &io_;
    std::string name_;
    uint64_t bytes_;
    std::deque<std::pair<base::Clock::time_point, uint64_t>> samples_;  // of the last seconds
    bool drawn_ = false;
};

// The lock that Hugging Face's own library also holds while it downloads a blob.
class BlobLock {
  public:
    BlobLock(const fs::path &root, const std::string &folder, const std::string &blob,
             const std::atomic<bool> &stop, Io &io)
        : file_(open_file(root / ".locks" / folder, blob)) {
        bool is_said = false;
        while (flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
            if (errno != EWOULDBLOCK && errno != EINTR) return;  // no locks on this file system
            if (stop) throw Interrupted();
            if (!is_said) io.note("another program is downloading this file: waiting for it");
            is_said = true;
            std::this_thread::sleep_for(50ms);
        }
    }

  private:
    static Descriptor open_file(const fs::path &folder, const std::string &blob) {
        fs::create_directories(folder);
        const fs::path path = folder / (blob + ".lock");
        const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
        if (fd < 0) throw OutputError("cannot write " + gguf::printable(path.native(), 4096));
        return {fd, true};
    }

    Descriptor file_;
};

// The files of the chosen model, with all parts.
std::vector<HubFile> choose(const HubName &name, const HubRepository &repository) {
    std::vector<std::string> paths;
    for (const HubFile &file : repository.files) paths.push_back(file.path);
    std::ranges::sort(paths);
    std::optional<std::string> first;
    if (name.file.empty())
        first = choose_model(paths, name.tag);
    else if (std::ranges::find(paths, name.file) != paths.end())
        first = name.file;
    if (!first) {
        std::string list;
        size_t count = 0;
        for (const std::string &path : paths)
            if (const auto parsed = parse_file_name(path);
                parsed && parsed->part == 1 && is_model_name(path)) {
                if (++count <= 30)
                    list += (list.empty() ? "" : ", ") +
                            gguf::printable(parsed->tag.empty() ? path : parsed->tag);
            }
        throw UsageError(name.text() + (count == 0 ? ": the repository has no GGUF model"
                                                   : ": the repository has no such model, but " + list));
    }
    std::vector<HubFile> files;
    const std::vector<std::string> parts = all_parts(paths, *first);
    if (const auto parsed = parse_file_name(*first);
        parsed && static_cast<size_t>(parsed->parts) != parts.size())
        throw UsageError(name.repo + ": " + gguf::printable(*first) + " is one of " +
                         std::to_string(parsed->parts) + " parts, but the repository has " +
                         std::to_string(parts.size()));
    for (size_t i = 0; i < parts.size(); ++i)
        if (const auto parsed = parse_file_name(parts[i]); parsed && parsed->part != static_cast<int>(i + 1))
            throw UsageError(name.repo + ": part " + std::to_string(i + 1) + " of " +
                             gguf::printable(*first) + " is missing");
    for (const std::string &part : parts) {
        const auto file = std::ranges::find(repository.files, part, &HubFile::path);
        if (file->sha256.empty())
            throw OutputError(name.repo + ": the server gives no SHA-256 for " + gguf::printable(part));
        files.push_back(*file);
    }
    return files;
}

bool is_there(const fs::path &blob, uint64_t bytes) {
    std::error_code error;
    return fs::is_regular_file(blob, error) && fs::file_size(blob, error) == bytes && !error;
}

// Throws if the disk has too little space for the missing bytes.
void check_space(const fs::path &blobs, const std::vector<HubFile> &files) {
    constexpr uint64_t kSpare = uint64_t{16} << 20;
    uint64_t missing = 0;
    for (const HubFile &file : files) {
        if (is_there(blobs / file.sha256, file.bytes)) continue;
        std::error_code error;
        const uint64_t have = fs::file_size(partial_path(blobs / file.sha256), error);
        missing += file.bytes - (error ? 0 : std::min<uint64_t>(have, file.bytes));
    }
    std::error_code error;
    const fs::space_info space = fs::space(blobs, error);
    if (missing == 0 || error || space.available >= missing + kSpare) return;
    throw OutputError("not enough disk space: " + size_text(missing, 1) +
                      " are still to be downloaded, and " + gguf::printable(blobs.native(), 4096) + " has " +
                      size_text(space.available, 1) + " free");
}

std::string pull_files(const HubName &name, const DownloadOptions &options, const std::atomic<bool> &stop,
                       Io &io) {
    const auto root = hub_root();
    if (!root) throw UsageError("no folder for the model: neither HOME nor HF_HOME is set");
    const HubServer server = hub_server();
    HubRepository repository;
    {
        Http http;
        repository = list_repository(http, server, name.repo, stop, options.stall_seconds);
    }
    const std::vector<HubFile> files = choose(name, repository);
    const std::string folder_name = hub_folder(name.repo);
    const fs::path folder = *root / folder_name, blobs = folder / "blobs";
    fs::create_directories(blobs);
    check_space(blobs, files);
    for (const HubFile &file : files) {
        const BlobLock lock(*root, folder_name, file.sha256, stop, io);
        if (is_there(blobs / file.sha256, file.bytes)) continue;
        PullProgress progress(io, file.path, file.bytes);
        download({.address = server.file_address(name.repo, repository.commit, file.path),
                  .token = server.token,
                  .path = blobs / file.sha256,
                  .name = name.repo + "/" + gguf::printable(file.path, 300),
                  .repo = name.repo,
                  .bytes = file.bytes,
                  .sha256 = file.sha256},
                 options, stop, [&](uint64_t done, bool is_hashing) { progress.update(done, is_hashing); });
    }
    // Links come last, so that every model in a snapshot is complete.
    for (const HubFile &file : files) link_blob(folder, repository.commit, file.path, file.sha256);
    set_main(folder, repository.commit);
    return (folder / "snapshots" / repository.commit / files.front().path).string();
}

}  // namespace

std::string pull_line(const std::string &name, uint64_t done, uint64_t all, double rate) {
    const double share = all > 0 ? static_cast<double>(done) / static_cast<double>(all) : 1;
    const std::string line = name + " " + progress_bar(share) + size_text(done, 1) + " of " +
                             size_text(all, 1) + format("  %.1f MB/s", rate / 1e6);
    if (rate < 1 || done >= all) return line;
    const double seconds = static_cast<double>(all - done) / rate;
    return seconds > 359'999 ? line : line + "  " + duration_text(seconds) + " left";
}

std::string pull(const HubName &name, const DownloadOptions &options, Io &io) {
    decode::StopRequest stop;
    const InterruptScope scope(stop);
    try {
        return pull_files(name, options, *stop.flag(), io);
    } catch (const HttpError &error) {
        if (error.kind == HttpError::Kind::Stopped) throw Interrupted();
        throw;
    } catch (const fs::filesystem_error &error) {
        throw OutputError("cannot write " + gguf::printable(error.path1().native(), 4096) + ": " +
                          error.code().message());
    }
}

std::optional<std::string> find_pulled(const HubName &name) {
    if (name.file.empty()) {
        const auto model = find_stored(name.text());
        return model && model->problem.empty() ? std::optional(model->path.string()) : std::nullopt;
    }
    // A file may be listed by its type: USER/REPO:Q8_0.
    for (const StoredModel &model : stored_models())
        if (model.problem.empty() &&
            (model.name == name.text() || (model.name.starts_with(name.repo + ":") &&
                                           model.path.generic_string().ends_with("/" + name.file))))
            return model.path.string();
    return std::nullopt;
}

}  // namespace runnel::commands
