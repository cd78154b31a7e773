// Where the lines of `runnel batch` go: each written whole as soon as it may be, in the order of the input or
// as they come.
//
// What is durable: a line is one write() of the complete line, so once it is counted as written it survives
// the end of this process, whatever ends it (kill -9 included). Against a power failure, a regular file is
// also synced to its disk every five seconds and at the end.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/commands/batch/batch_row.h"
#include "engine/commands/io.h"

namespace runnel::commands {

// What an output file holds that an earlier run has left.
class WrittenRows {
  public:
    // The row that answers this line of the input, if there is one.
    const WrittenRow *find(int64_t line) const;
    int64_t last() const { return rows_.empty() ? 0 : rows_.back().line; }
    int64_t count() const { return static_cast<int64_t>(rows_.size()); }
    int64_t failed() const;
    bool in_order() const { return in_order_; }

    // Reads a file from its beginning and cuts off a last line that is not complete. Throws InputError for
    // lines that `batch` did not write, OutputError when it cannot be repaired.
    static WrittenRows recover(int fd, const std::string &name);

  private:
    std::vector<WrittenRow> rows_;  // by line
    bool in_order_ = true;
};

class BatchOutput {
  public:
    struct Options {
        bool resume = false;     // go on with what an earlier run has written
        bool overwrite = false;  // or empty the file, whatever it holds
        bool ordered = true;
    };
    // path: a file, or nullopt for standard output. Throws UsageError when it cannot be opened, is being
    // written by another process or holds something that is neither to be continued nor overwritten.
    BatchOutput(const std::optional<std::string> &path, const Options &options);

    const WrittenRows &before() const { return before_; }

    // Announces the next row in the order of the input; returns its place.
    uint64_t reserve() { return places_++; }
    // The line of a place, with its line end. Writes what may be written. Throws ClosedPipe or OutputError.
    void put(uint64_t place, std::string line);
    // Lines that wait for others in front of them.
    size_t held() const { return held_.size(); }
    int64_t written() const { return written_; }
    // Places whose line is not written.
    uint64_t missing() const { return places_ - static_cast<uint64_t>(written_); }
    // Syncs. Throws OutputError.
    void close();

  private:
    void start_anew(bool overwrite);
    void write(const std::string &line);
    void sync();

    std::optional<std::string> path_;
    std::string name_;
    Descriptor file_;
    Output out_;
    bool ordered_, regular_ = false;
    WrittenRows before_;
    uint64_t places_ = 0, next_ = 0;
    std::map<uint64_t, std::string> held_;
    int64_t written_ = 0;
    off_t size_ = 0;  // of a regular file, up to its last whole line
    std::chrono::steady_clock::time_point synced_ = std::chrono::steady_clock::now();
};

}  // namespace runnel::commands
