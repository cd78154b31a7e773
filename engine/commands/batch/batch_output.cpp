#include "engine/commands/batch/batch_output.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
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
constexpr std::string_view kManifest = ".resume";

std::string reason() {
    return std::generic_category().message(errno);
}

bool is_regular(int fd) {
    struct stat status {};
    return fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

// Opens the output without emptying it: another process may be writing to it.
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

std::string identity_of(int fd) {
    const auto id = gguf::file_id(fd);
    if (!id) return {};
    return std::to_string(id->device) + ":" + std::to_string(id->inode) + ":" + std::to_string(id->born);
}

// A new name in a folder reaches the disk only when the folder itself is synced.
void sync_folder_of(const std::string &path) {
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    const Descriptor file(open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC),
                          true);
    if (file.get() >= 0) std::ignore = fsync(file.get());
}

// Reads a file line by line; the last line may lack its line end.
class Lines {
  public:
    Lines(int fd, const std::string &name) : reader_(fd, name, std::numeric_limits<size_t>::max() / 2) {}
    bool next() {
        LineReader::State state;
        begin_ = reader_.offset();
        do state = reader_.next(text_, -1);
        while (state == LineReader::State::NotYet);  // interrupted by a signal
        return state == LineReader::State::Line;
    }
    const std::string &text() const { return text_; }
    bool whole() const { return reader_.ended(); }
    int64_t number() const { return reader_.number(); }
    uint64_t begin() const { return begin_; }
    uint64_t end() const { return reader_.offset(); }

  private:
    LineReader reader_;
    std::string text_;
    uint64_t begin_ = 0;
};

bool has_zeros(const Lines &lines) {
    return lines.text().find('\0') != std::string::npos;
}

// True for what a crash can leave after the lines with a record: a line whose record did not reach the disk,
// part of a line, or zeros for pages that did not reach the disk.
bool may_be_left_over(const Lines &lines) {
    if (has_zeros(lines)) return true;
    return lines.whole() ? parse_written(lines.text()).has_value() : lines.text().starts_with('{');
}

[[noreturn]] void refuse_line(const std::string &name, int64_t number) {
    throw InputError(name + " line " + std::to_string(number) +
                     " was not written by runnel batch: choose another file to resume");
}

[[noreturn]] void refuse_changed(const std::string &name, int64_t number) {
    throw InputError(name + " line " + std::to_string(number) + " has changed since it was written (" + name +
                     std::string(kManifest) +
                     " has its hash): --resume --force keeps it, --overwrite replaces the file");
}

}  // namespace

uint64_t size_of(int fd) {
    struct stat status {};
    return fstat(fd, &status) == 0 ? static_cast<uint64_t>(status.st_size) : 0;
}

std::string manifest_of(const std::string &output) {
    return output + std::string(kManifest);
}

const WrittenRows::Entry *WrittenRows::find(int64_t line) const {
    const auto found = std::lower_bound(rows_.begin(), rows_.end(), line,
                                        [](const Entry &entry, int64_t l) { return entry.row.line < l; });
    return found != rows_.end() && found->row.line == line ? &*found : nullptr;
}

int64_t WrittenRows::failed() const {
    return std::count_if(rows_.begin(), rows_.end(), [](const Entry &entry) { return entry.row.failed; });
}

void WrittenRows::add(WrittenRow row, std::string hash, uint64_t end) {
    in_order_ = in_order_ && (rows_.empty() || row.line > rows_.back().row.line);
    rows_.push_back({std::move(row), std::move(hash)});
    bytes_ = end;
}

WrittenRows WrittenRows::recover(int fd, const std::string &name, const BatchManifest &manifest, bool force) {
    WrittenRows written;
    Lines lines(fd, name);
    bool vouched = manifest.exists(), cut = false;
    for (size_t i = 0; lines.next(); ++i) {
        auto row = lines.whole() ? parse_written(lines.text()) : std::nullopt;
        if (vouched) {
            const ManifestRow *record = i < manifest.rows().size() ? &manifest.rows()[i] : nullptr;
            vouched = row && record && record->at == lines.begin() &&
                      record->at + record->bytes == lines.end() && record->line == row->line &&
                      record->answer == content_hash(lines.text() + "\n");
            if (vouched) {
                written.add(std::move(*row), record->row, lines.end());
                ++written.vouched_;
                continue;
            }
            if (record && lines.whole() && !has_zeros(lines) && !force) refuse_changed(name, lines.number());
        }
        if (force && row && !cut) {
            written.adopted_.push_back({row->line,
                                        lines.begin(),
                                        lines.end() - lines.begin(),
                                        {},
                                        content_hash(lines.text() + "\n")});
            written.add(std::move(*row), {}, lines.end());
            continue;
        }
        // Lines without a record may remain from a crash only in the file that the manifest was made for.
        const bool same = written.count() > 0 || manifest.output() == identity_of(fd);
        cut = true;
        if (manifest.exists() && same && may_be_left_over(lines)) continue;
        if (!row && (lines.whole() || written.count() == 0 || !lines.text().starts_with('{')))
            refuse_line(name, lines.number());
        if (!force)
            throw InputError(
                name + " line " + std::to_string(lines.number()) + " is not in " + name +
                std::string(kManifest) +
                ", which records what the answers were computed from: another run or an older runnel wrote "
                "it. --resume --force keeps its rows, --overwrite replaces the file");
    }
    std::stable_sort(written.rows_.begin(), written.rows_.end(),
                     [](const Entry &a, const Entry &b) { return a.row.line < b.row.line; });
    return written;
}

BatchOutput::BatchOutput(const std::optional<std::string> &path, const Options &options)
    : options_(options),
      path_(path),
      name_(path ? gguf::printable(*path, 4096) : "standard output"),
      file_(open_output(path)),
      out_(file_.get(), name_),
      regular_(is_regular(file_.get())) {
    if (path && regular_) manifest_.emplace(manifest_of(*path));
    if (options.resume && !manifest_) throw UsageError("--resume needs an output file: name it with -o");
    if (!manifest_ || size_of(file_.get()) == 0) return;
    if (options.resume)
        before_ = WrittenRows::recover(file_.get(), name_, *manifest_, options.force);
    else if (!options.overwrite)
        throw UsageError(
            name_ + " is not empty: --resume continues after the answers in it, --overwrite replaces it");
    if (options.ordered && !before_.in_order())
        throw UsageError(name_ + " was written with --unordered: resume it with --unordered");
}

std::optional<std::string> BatchOutput::earlier(const std::string &setting) const {
    if (before_.count() == 0 || !manifest_->settings()) return std::nullopt;
    for (const auto &[name, value] : *manifest_->settings())
        if (name == setting) return value;
    return std::nullopt;
}

void BatchOutput::begin(const BatchSettings &settings) {
    if (!manifest_) return;
    if (before_.count() > 0 && manifest_->settings() && !options_.force)
        if (const std::string what = differences(*manifest_->settings(), settings); !what.empty())
            throw UsageError(name_ + " was written with other settings: " + what +
                             ". --resume --force continues with the new settings");
    size_ = before_.bytes();
    if (size_of(file_.get()) != size_ && ftruncate(file_.get(), static_cast<off_t>(size_)) != 0)
        throw OutputError("cannot repair " + name_ + ": " + reason());
    sync();
    const std::string identity = identity_of(file_.get());
    manifest_->go_on(identity, settings, before_.vouched());
    for (const ManifestRow &row : before_.adopted()) manifest_->append(row);
    sync_folder_of(*path_);
}

bool BatchOutput::answered(const RowIdentity &row, std::string_view content) const {
    const std::string line = "line " + std::to_string(row.line) + " of the input";
    const WrittenRows::Entry *entry = before_.find(row.line);
    if (!entry) {
        if (options_.ordered && row.line < before_.last())
            throw UsageError("the output has answers to lines after " + std::to_string(row.line) +
                             ", but not to that line: resume it with its original --shard and --unordered");
        return false;
    }
    if (entry->row.id != row.id && !options_.force)
        throw InputError(line + " has a different id in the output, which may belong to another input");
    if (!entry->hash.empty() && entry->hash != content_hash(content) && !options_.force)
        throw InputError(line + " has changed since " + name_ +
                         " was written: choose another output, or keep the old answer with --resume --force");
    return true;
}

uint64_t BatchOutput::reserve(const RowIdentity &row, std::string_view content) {
    if (manifest_) open_[places_] = {.line = row.line, .row = content_hash(content), .answer = {}};
    return places_++;
}

void BatchOutput::put(uint64_t place, std::string line) {
    if (!options_.ordered) return write(place, line);
    held_.emplace(place, std::move(line));
    for (auto first = held_.begin(); first != held_.end() && first->first == next_; first = held_.begin()) {
        write(next_, first->second);
        held_.erase(first);
        ++next_;
    }
}

// Writes the record before the line, so that every line has one however this process ends.
void BatchOutput::record(uint64_t place, const std::string &line) {
    if (!manifest_) return;
    auto record = open_.extract(place);
    record.mapped().at = size_;
    record.mapped().bytes = line.size();
    record.mapped().answer = content_hash(line);
    manifest_->append(record.mapped());
}

void BatchOutput::write(uint64_t place, const std::string &line) {
    record(place, line);
    try {
        out_.write(line);
    } catch (const OutputError &) {  // a full disk: remove the partial line
        if (manifest_) std::ignore = ftruncate(file_.get(), static_cast<off_t>(size_));
        throw;
    }
    size_ += line.size();
    ++written_;
    if (std::chrono::steady_clock::now() - synced_ > kSyncEvery) sync();
}

void BatchOutput::sync() {
    if (manifest_) manifest_->sync();
    if (regular_ && fdatasync(file_.get()) != 0)
        throw OutputError("cannot write to " + name_ + ": " + reason());
    synced_ = std::chrono::steady_clock::now();
}

void BatchOutput::close() {
    sync();
}

void BatchOutput::complete(const BatchEnd &end) {
    if (!manifest_) return;
    manifest_->append(end);
    manifest_->sync();
}

}  // namespace runnel::commands
