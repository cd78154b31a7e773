#include "engine/commands/batch/batch_output.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>
#include <tuple>
#include <utility>

#include "engine/commands/chat/line_reader.h"
#include "gguf/output_file.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

constexpr auto kSyncEvery = std::chrono::seconds(5);

std::string reason() {
    return std::generic_category().message(errno);
}

off_t size_of(int fd) {
    struct stat status {};
    return fstat(fd, &status) == 0 ? status.st_size : 0;
}

bool is_regular(int fd) {
    struct stat status {};
    return fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

// Not emptied yet: another process may be at work on it.
Descriptor open_output(const std::optional<std::string> &path) {
    if (!path) return Descriptor(STDOUT_FILENO, false);
    const std::string name = gguf::printable(*path, 4096);
    struct stat status {};
    const bool special = stat(path->c_str(), &status) == 0 && !S_ISREG(status.st_mode);  // a named pipe
    const int how = special ? O_WRONLY : O_RDWR | O_CREAT | O_APPEND;
    Descriptor file(open(path->c_str(), how | O_CLOEXEC, 0666), true);
    if (file.get() < 0) throw UsageError("cannot open " + name + " for writing: " + reason());
    if (is_regular(file.get()) && flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        throw UsageError(name + " is being written by another process");
    gguf::refuse_if_read(file.get(), *path);
    return file;
}

}  // namespace

const WrittenRow *WrittenRows::find(int64_t line) const {
    const auto found = std::lower_bound(rows_.begin(), rows_.end(), line,
                                        [](const WrittenRow &row, int64_t l) { return row.line < l; });
    return found != rows_.end() && found->line == line ? &*found : nullptr;
}

int64_t WrittenRows::failed() const {
    return std::count_if(rows_.begin(), rows_.end(), [](const WrittenRow &row) { return row.failed; });
}

WrittenRows WrittenRows::recover(int fd, const std::string &name) {
    WrittenRows written;
    LineReader reader(fd, name, std::numeric_limits<size_t>::max() / 2);
    std::string line;
    uint64_t good = 0;  // bytes of complete lines
    bool damaged = false;
    for (;;) {
        const LineReader::State state = reader.next(line, -1);
        if (state == LineReader::State::NotYet) continue;  // a signal
        damaged = state == LineReader::State::Line && !reader.ended();
        if (state == LineReader::State::End || damaged) break;
        auto row = parse_written(line);
        if (!row)
            throw InputError(name + " line " + std::to_string(reader.number()) +
                             " was not written by runnel batch: choose another file to resume");
        written.in_order_ = written.in_order_ && row->line > written.last();
        written.rows_.push_back(std::move(*row));
        good = reader.offset();
    }
    if (damaged && ftruncate(fd, static_cast<off_t>(good)) != 0)
        throw OutputError("cannot repair " + name + ": " + reason());
    std::stable_sort(written.rows_.begin(), written.rows_.end(),
                     [](const WrittenRow &a, const WrittenRow &b) { return a.line < b.line; });
    return written;
}

BatchOutput::BatchOutput(const std::optional<std::string> &path, const Options &options)
    : path_(path),
      name_(path ? gguf::printable(*path, 4096) : "standard output"),
      file_(open_output(path)),
      out_(file_.get(), name_),
      ordered_(options.ordered),
      regular_(is_regular(file_.get())) {
    if (options.resume && !(path && regular_))
        throw UsageError("--resume needs a file to go on with: name it with -o");
    if (options.resume)
        before_ = WrittenRows::recover(file_.get(), name_);
    else if (path && regular_)
        start_anew(options.overwrite);
    size_ = size_of(file_.get());
    if (ordered_ && !before_.in_order())
        throw UsageError(name_ + " was written with --unordered: resume it with --unordered");
}

void BatchOutput::start_anew(bool overwrite) {
    if (size_of(file_.get()) > 0 && !overwrite)
        throw UsageError(name_ +
                         " is not empty: --resume goes on with the answers in it, --overwrite replaces it");
    if (ftruncate(file_.get(), 0) != 0) throw OutputError("cannot empty " + name_ + ": " + reason());
}

void BatchOutput::put(uint64_t place, std::string line) {
    if (!ordered_) return write(line);
    held_.emplace(place, std::move(line));
    for (auto first = held_.begin(); first != held_.end() && first->first == next_; first = held_.begin()) {
        write(first->second);
        held_.erase(first);
        ++next_;
    }
}

void BatchOutput::write(const std::string &line) {
    try {
        out_.write(line);
    } catch (const OutputError &) {  // a full disk: no part of a line stays
        if (regular_ && path_) std::ignore = ftruncate(file_.get(), size_);
        throw;
    }
    size_ += static_cast<off_t>(line.size());
    ++written_;
    if (std::chrono::steady_clock::now() - synced_ > kSyncEvery) sync();
}

void BatchOutput::sync() {
    if (regular_ && fdatasync(file_.get()) != 0)
        throw OutputError("cannot write to " + name_ + ": " + reason());
    synced_ = std::chrono::steady_clock::now();
}

void BatchOutput::close() {
    sync();
}

}  // namespace runnel::commands
