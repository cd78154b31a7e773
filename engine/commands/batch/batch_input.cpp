#include "engine/commands/batch/batch_input.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <span>
#include <utility>

#include "engine/commands/version.h"
#include "gguf/printable.h"
#include "gguf/read_files.h"

namespace runnel::commands {
namespace {

constexpr size_t kLongestLine = size_t{64} << 20;

Descriptor open_input(const std::optional<std::string> &path, const Io &io) {
    if (!path || *path == "-") return Descriptor(io.in, false);
    Descriptor file(open(path->c_str(), O_RDONLY | O_CLOEXEC), true);
    struct stat status {};
    if (file.get() < 0 || fstat(file.get(), &status) != 0)
        throw UsageError("cannot open " + gguf::printable(*path, 4096) + ": no such file, or not readable");
    if (S_ISDIR(status.st_mode)) throw UsageError(gguf::printable(*path, 4096) + " is a directory");
    return file;
}

std::string name_of(const std::optional<std::string> &path) {
    return path && *path != "-" ? gguf::printable(*path, 4096) : "standard input";
}

// -o must not empty what -i is about to read.
void refuse_same_file(int input, const std::optional<std::string> &output) {
    struct stat in {
    }, out{};
    if (output && fstat(input, &in) == 0 && stat(output->c_str(), &out) == 0 && S_ISREG(in.st_mode) &&
        in.st_dev == out.st_dev && in.st_ino == out.st_ino)
        throw UsageError(gguf::printable(*output, 4096) + " is both input and output");
}

}  // namespace

BatchInput::BatchInput(const BatchOptions &options, Io &io)
    : options_(options),
      io_(io),
      name_(name_of(options.input)),
      file_(open_input(options.input, io)),
      reader_(file_.get(), name_, kLongestLine) {
    refuse_same_file(file_.get(), options.output);
    gguf::note_read(file_.get());
    struct stat status {};
    if (fstat(file_.get(), &status) == 0 && S_ISREG(status.st_mode))
        size_ = static_cast<uint64_t>(status.st_size);
}

BatchInput::Next BatchInput::next(int milliseconds, const BatchOutput &output) {
    const auto state = reader_.next(line_, milliseconds);
    if (state == LineReader::State::End) return {Next::State::End};
    if (state != LineReader::State::Line) return {Next::State::NotYet};
    const int64_t number = reader_.number();
    sum_.add_value(uint64_t{line_.size()});
    sum_.add(std::as_bytes(std::span(line_)));
    const uint64_t bytes = reader_.offset() - std::exchange(read_, reader_.offset());
    const bool mine = (number - 1) % options_.shard.parts == options_.shard.part - 1;
    const bool blank = line_.find_first_not_of(" \t") == std::string::npos;
    if (!mine || blank) {
        passed_ += bytes;
        return {Next::State::PassedOver};
    }
    ++rows_;
    Row row = options_.lines ? text_row(line_, number) : parse_row(line_, number);
    if (reader_.cut()) row.error = "the line is longer than " + std::to_string(kLongestLine >> 20) + " MiB";
    for (const std::string &key : row.unknown) note_unknown(key, number);
    if (output.answered(row.identity, line_)) {
        ++kept_;
        passed_ += bytes;
        kept_bytes_ += bytes;
        return {Next::State::PassedOver};
    }
    return {Next::State::Row, std::move(row), line_, bytes};
}

BatchEnd BatchInput::end() const {
    return {.rows = static_cast<uint64_t>(rows_),
            .lines = static_cast<uint64_t>(reader_.number()),
            .bytes = reader_.offset(),
            .input = shown_hash(sum_.value()),
            .version = build_commit()};
}

// Notes each key once, and only the first kMost keys, because rows may carry any other data.
void BatchInput::note_unknown(const std::string &key, int64_t line) {
    constexpr size_t kMost = 16;
    if (unknown_keys_.size() < kMost && unknown_keys_.insert(key).second)
        io_.note("line " + std::to_string(line) + ": the key " + gguf::quoted(key) + " has no meaning here");
}

}  // namespace runnel::commands
