#include "engine/commands/models/download.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <vector>

#include "engine/commands/io.h"
#include "engine/commands/models/http.h"
#include "engine/commands/models/hub_api.h"
#include "engine/commands/models/sha256.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

std::string system_error() {
    return std::generic_category().message(errno);
}

// Opens a partial file for reading and appending.
Descriptor open_partial(const fs::path &path) {
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0)
        throw OutputError("cannot write " + gguf::printable(path.native(), 4096) + ": " + system_error());
    return {fd, true};
}

// One attempt to download a whole file.
class Attempt {
  public:
    Attempt(const DownloadTask &task, const DownloadOptions &options, const std::atomic<bool> &stop, int fd,
            uint64_t have)
        : task_(task), options_(options), user_stop_(stop), fd_(fd), written_(have), next_(have) {}

    void run(const DownloadProgress &progress) {
        std::vector<std::thread> threads;
        progress(written_, false);
        // The first connection finds out whether the server supports ranges.
        threads.emplace_back([this] { work(true); });
        bool is_alone = true;
        std::unique_lock lock(mutex_);
        while (running_ > 0) {
            changed_.wait_for(lock, 200ms,
                              [&] { return running_ == 0 || (is_alone && has_ranges_ && !stop_); });
            if (user_stop_ && !stop_.exchange(true)) changed_.notify_all();
            if (is_alone && has_ranges_ && !stop_) {
                is_alone = false;
                const uint64_t ranges = (task_.bytes - written_) / options_.range;
                const int more = static_cast<int>(
                    std::min<uint64_t>(ranges, static_cast<uint64_t>(options_.connections) - 1));
                try {
                    for (int i = 0; i < more; ++i) {
                        threads.emplace_back([this] { work(false); });
                        ++running_;
                    }
                } catch (const std::system_error &) {  // fewer connections are enough
                }
            }
            const uint64_t done = received_ + written_;
            lock.unlock();
            progress(std::min(done, task_.bytes), false);
            lock.lock();
        }
        lock.unlock();
        for (std::thread &thread : threads) thread.join();
        if (user_stop_) throw Interrupted();
        if (failure_) std::rethrow_exception(failure_);
    }

  private:
    struct Range {
        uint64_t from, end;
    };

    // The loop of a connection.
    void work(bool is_first) {
        try {
            Http http;
            while (const auto range = next_range()) fetch(http, *range, is_first);
        } catch (const HttpError &error) {
            if (error.kind != HttpError::Kind::Stopped) fail(std::current_exception());
        } catch (...) {
            fail(std::current_exception());
        }
        const std::lock_guard lock(mutex_);
        --running_;
        changed_.notify_all();
    }

    void fail(std::exception_ptr failure) {
        const std::lock_guard lock(mutex_);
        if (!failure_) failure_ = std::move(failure);
        stop_ = true;
        changed_.notify_all();
    }

    std::optional<Range> next_range() {
        std::unique_lock lock(mutex_);
        // Ranges that arrive before an earlier one stay in memory, so their number is limited.
        const uint64_t most = options_.range * 2 * static_cast<uint64_t>(options_.connections);
        changed_.wait(lock, [&] { return stop_ || next_ >= task_.bytes || next_ < written_ + most; });
        if (stop_ || next_ >= task_.bytes) return std::nullopt;
        const Range range{next_, std::min(next_ + options_.range, task_.bytes)};
        next_ = range.end;
        return range;
    }

    // Fetches a range, with retries.
    void fetch(Http &http, Range range, bool is_first) {
        Bytes bytes;
        bytes.reserve(static_cast<size_t>(range.end - range.from));
        for (int failures = 0;;) {
            const size_t before = bytes.size();
            const uint64_t written = written_now();
            std::string why;
            try {
                if (request(http, range, bytes, is_first)) return;
                why = "the server ended the file early";
            } catch (const HttpError &error) {
                if (error.kind == HttpError::Kind::Stopped) {
                    keep(range, bytes);
                    throw;
                }
                if (error.kind == HttpError::Kind::Certificate || error.kind == HttpError::Kind::Refused)
                    throw;
                why = error.what();
            }
            failures = bytes.size() > before || written_now() > written ? 0 : failures + 1;
            forget_redirect();
            if (failures > options_.retries) {
                keep(range, bytes);
                throw OutputError(task_.name + ": " + why +
                                  "; the downloaded part is kept: run the same command again to continue");
            }
            if (failures > 0) pause(failures);
        }
    }

    // Requests the part of the range that `bytes` lacks. True if the range is complete: it is then in the file, or
    // waits in memory for earlier ranges.
    bool request(Http &http, Range range, Bytes &bytes, bool is_first) {
        const uint64_t from = range.from + bytes.size();
        uint64_t at = 0;  // if the server sends the whole file: the position of the next byte
        bool is_whole = false, is_too_long = false;
        std::string problem;
        HttpRequest request{.address = address(), .token = task_.token, .origin = task_.address};
        request.range = {from, range.end};
        request.stop = &stop_;
        request.stall_seconds = options_.stall_seconds;
        request.begin = [&](const HttpResponse &response) {
            if (response.status == 206) {
                problem = range_problem(response, from);
                if (problem.empty() && is_first) ranges_work();
                return problem.empty();
            }
            is_whole = response.status == 200;
            return is_whole;
        };
        request.body = [&](std::span<const std::byte> data) {
            if (is_whole) {
                is_too_long = data.size() > task_.bytes - at;
                if (is_too_long) return false;
                append_whole(data, at);
                at += data.size();
                return true;
            }
            is_too_long = data.size() > range.end - range.from - bytes.size();
            if (is_too_long) return false;
            bytes.insert(bytes.end(), data.begin(), data.end());
            received_ += data.size();
            return true;
        };
        const HttpResponse response = http.get(request);
        if (!problem.empty()) throw OutputError(task_.name + ": " + problem);
        if (is_too_long)
            throw OutputError(task_.name + ": the server sends more than the file's " +
                              std::to_string(task_.bytes) + " bytes");
        if (response.status == 416)
            throw OutputError(task_.name + ": the server's file is shorter than the " +
                              std::to_string(task_.bytes) + " bytes that it lists (416)");
        if (is_whole) {
            if (at < task_.bytes) throw HttpError(HttpError::Kind::Broken, "the server ended the file early");
            const std::lock_guard lock(mutex_);
            next_ = task_.bytes;
            return true;
        }
        if (response.status >= 500 || response.status == 429 || response.status == 408)
            throw HttpError(HttpError::Kind::Broken,
                            "the server answers with status " + std::to_string(response.status));
        // The address behind a redirect expires after some time.
        if (response.status != 206 && request.address != task_.address)
            throw HttpError(HttpError::Kind::Broken,
                            "the server answers with status " + std::to_string(response.status));
        if (response.status != 206)
            check_status(response, {origin_of(task_.address), task_.token}, task_.repo);
        remember_redirect(response.address);
        if (range.from + bytes.size() < range.end) return false;
        deliver(range.from, std::move(bytes));
        return true;
    }

    // What is wrong with "Content-Range: bytes FROM-LAST/ALL", or empty.
    std::string range_problem(const HttpResponse &response, uint64_t from) const {
        const std::string header = response.header("content-range");
        const std::string start = "bytes " + std::to_string(from) + "-";
        if (!header.starts_with(start)) return "the server sent a different range than the one requested";
        const size_t slash = header.find('/');
        const std::string all = slash == header.npos ? "*" : header.substr(slash + 1);
        if (all != "*" && all != std::to_string(task_.bytes))
            return "the server's file has " + gguf::printable(all, 30) +
                   " bytes, but its list of files says " + std::to_string(task_.bytes);
        return "";
    }

    // Called if the server sends the whole file: writes the bytes that the partial file lacks.
    void append_whole(std::span<const std::byte> data, uint64_t at) {
        const std::lock_guard lock(mutex_);
        next_ = task_.bytes;  // leaves no ranges to other connections
        if (at + data.size() <= written_) return;
        if (at < written_) data = data.subspan(static_cast<size_t>(written_ - at));
        write_at_end(data);
    }

    // Takes a complete range; writes it at once, or when the ranges before it have arrived.
    void deliver(uint64_t from, Bytes bytes) {
        const std::lock_guard lock(mutex_);
        waiting_[from] = std::move(bytes);
        // If the server also sends the whole file, a part of the range may be in the file already.
        for (auto first = waiting_.begin(); first != waiting_.end() && first->first <= written_;
             first = waiting_.begin()) {
            received_ -= first->second.size();
            const auto there =
                static_cast<size_t>(std::min<uint64_t>(written_ - first->first, first->second.size()));
            write_at_end(std::span(first->second).subspan(there));
            waiting_.erase(first);
        }
        changed_.notify_all();
    }

    // Saves an incomplete range if it is the next one in the file.
    void keep(const Range &range, const Bytes &bytes) {
        const std::lock_guard lock(mutex_);
        if (range.from == written_ && !bytes.empty()) write_at_end(bytes);
    }

    void write_at_end(std::span<const std::byte> data) {
        while (!data.empty()) {
            const ssize_t n = pwrite(fd_, data.data(), data.size(), static_cast<off_t>(written_));
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0)
                throw OutputError("cannot write " + gguf::printable(partial_path(task_.path).native(), 4096) +
                                  ": " + system_error());
            written_ += static_cast<uint64_t>(n);
            data = data.subspan(static_cast<size_t>(n));
        }
    }

    void pause(int failures) {
        const auto time = std::min(8000ms, 100ms * (1 << std::min(failures - 1, 7)));
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, time, [&] { return stop_.load(); });
        if (stop_) throw HttpError(HttpError::Kind::Stopped, "stopped");
    }

    void ranges_work() {
        const std::lock_guard lock(mutex_);
        has_ranges_ = true;
        changed_.notify_all();
    }
    uint64_t written_now() {
        const std::lock_guard lock(mutex_);
        return written_;
    }
    std::string address() {
        const std::lock_guard lock(mutex_);
        return redirected_.empty() ? task_.address : redirected_;
    }
    void remember_redirect(const std::string &address) {
        const std::lock_guard lock(mutex_);
        if (address != task_.address) redirected_ = address;
    }
    void forget_redirect() {
        const std::lock_guard lock(mutex_);
        redirected_.clear();
    }

    const DownloadTask &task_;
    const DownloadOptions &options_;
    const std::atomic<bool> &user_stop_;
    const int fd_;

    std::mutex mutex_;
    std::condition_variable changed_;
    std::atomic<bool> stop_{false};
    std::atomic<uint64_t> received_{0};  // bytes that wait in memory
    uint64_t written_, next_;            // bytes in the file; beginning of the next range to request
    std::map<uint64_t, Bytes> waiting_;
    std::string redirected_;
    bool has_ranges_ = false;
    int running_ = 1;
    std::exception_ptr failure_;
};

std::string hash_of(int fd, uint64_t bytes, const std::atomic<bool> &stop, const DownloadProgress &progress) {
    Sha256 hash;
    Bytes buffer(size_t{1} << 20);
    uint64_t at = 0;
    auto shown = std::chrono::steady_clock::now();
    while (at < bytes) {
        if (stop) throw Interrupted();
        const ssize_t n =
            pread(fd, buffer.data(), static_cast<size_t>(std::min<uint64_t>(buffer.size(), bytes - at)),
                  static_cast<off_t>(at));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            throw OutputError("cannot read the downloaded file: " +
                              (n < 0 ? system_error() : "the file was truncated"));
        hash.add(std::span(buffer).first(static_cast<size_t>(n)));
        at += static_cast<uint64_t>(n);
        if (std::chrono::steady_clock::now() - shown < 200ms) continue;
        shown = std::chrono::steady_clock::now();
        progress(at, true);
    }
    return hash.digest();
}

}  // namespace

fs::path partial_path(const fs::path &path) {
    return path.string() + ".incomplete";
}

void download(const DownloadTask &task, const DownloadOptions &options, const std::atomic<bool> &stop,
              const DownloadProgress &progress) {
    const fs::path partial = partial_path(task.path);
    const Descriptor file = open_partial(partial);
    for (;;) {
        const off_t end = lseek(file.get(), 0, SEEK_END);
        uint64_t have = static_cast<uint64_t>(std::max<off_t>(end, 0));
        if (have > task.bytes) {
            have = 0;
            if (ftruncate(file.get(), 0) != 0)
                throw OutputError("cannot truncate " + partial.string() + ": " + system_error());
        }
        if (have < task.bytes) Attempt(task, options, stop, file.get(), have).run(progress);
        const std::string hash = hash_of(file.get(), task.bytes, stop, progress);
        if (hash == task.sha256) break;
        if (have == 0) {
            unlink(partial.c_str());
            throw OutputError(task.name + ": the SHA-256 of the download is " + hash + ", expected " +
                              task.sha256 + "; the download was removed");
        }
        if (ftruncate(file.get(), 0) != 0)
            throw OutputError("cannot truncate " + partial.string() + ": " + system_error());
    }
    if (fsync(file.get()) != 0 || rename(partial.c_str(), task.path.c_str()) != 0)
        throw OutputError("cannot write " + gguf::printable(task.path.native(), 4096) + ": " +
                          system_error());
}

}  // namespace runnel::commands
