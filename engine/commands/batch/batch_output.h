// Where the lines of `runnel batch` go: each written whole as soon as it may be, in the order of the input or
// as they come. Beside a file lies its manifest (batch_manifest.h).
//
// What is durable: a line is one write() of the complete line, so once it is counted as written it survives
// the end of this process, whatever ends it (kill -9 included). Against a power failure, a regular file and
// its manifest are also synced to the disk every five seconds and at the end. What a crash leaves behind the
// last whole line that the manifest vouches for is cut off by --resume, and computed again; what this program
// cannot have written is never touched.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/commands/batch/batch_manifest.h"
#include "engine/commands/batch/batch_row.h"
#include "engine/commands/io.h"

namespace runnel::commands {

// What an output file holds that an earlier run has left.
class WrittenRows {
  public:
    struct Entry {
        WrittenRow row;
        std::string hash;  // of the line of the input; empty: not known
    };
    // The row that answers this line of the input, if there is one.
    const Entry *find(int64_t line) const;
    int64_t last() const { return rows_.empty() ? 0 : rows_.back().row.line; }
    int64_t count() const { return static_cast<int64_t>(rows_.size()); }
    int64_t failed() const;
    bool in_order() const { return in_order_; }
    uint64_t bytes() const { return bytes_; }    // of the lines that count; what is behind them goes
    size_t vouched() const { return vouched_; }  // by the first records of the manifest
    // Records for lines that no manifest vouched for; without the hash of their row.
    const std::vector<ManifestRow> &adopted() const { return adopted_; }

    // Reads a file from its beginning. The lines that the manifest vouches for count. Throws InputError when
    // a line is another than the manifest says, when there is something behind the last that `batch` cannot
    // have left there, and when there is no manifest. With `force`, all lines of answers count.
    static WrittenRows recover(int fd, const std::string &name, const BatchManifest &manifest, bool force);

  private:
    void add(WrittenRow row, std::string hash, uint64_t end);

    std::vector<Entry> rows_;  // by line
    size_t vouched_ = 0;
    std::vector<ManifestRow> adopted_;
    bool in_order_ = true;
    uint64_t bytes_ = 0;
};

class BatchOutput {
  public:
    struct Options {
        bool resume = false;     // go on with what an earlier run has written,
        bool force = false;      // even if settings or rows are others now
        bool overwrite = false;  // or empty the file, whatever it holds
        bool ordered = true;
    };
    // path: a file, or nullopt for standard output. Throws UsageError when it cannot be opened, is being
    // written by another process or holds something that is neither to be continued nor overwritten. Nothing
    // is changed yet.
    BatchOutput(const std::optional<std::string> &path, const Options &options);

    const WrittenRows &before() const { return before_; }
    // A setting that the earlier run had.
    std::optional<std::string> earlier(const std::string &setting) const;
    // Makes the file ready: empties it, or repairs it. Throws UsageError when the earlier run had other
    // settings, naming them, OutputError.
    void begin(const BatchSettings &settings);

    // Whether the earlier run has answered this row; `content`: the line of the input. Throws UsageError and
    // InputError when it cannot have been this row.
    bool answered(const RowIdentity &row, std::string_view content) const;
    // Announces the next row in the order of the input; returns its place.
    uint64_t reserve(const RowIdentity &row, std::string_view content);
    // The line of a place, with its line end. Writes what may be written. Throws ClosedPipe or OutputError.
    void put(uint64_t place, std::string line);
    // Lines that wait for others in front of them.
    size_t held() const { return held_.size(); }
    int64_t written() const { return written_; }
    // Places whose line is not written.
    uint64_t missing() const { return places_ - static_cast<uint64_t>(written_); }
    const std::string &name() const { return name_; }
    // Syncs. Throws OutputError.
    void close();

  private:
    void write(uint64_t place, const std::string &line);
    void record(uint64_t place, const std::string &line);
    void sync();

    Options options_;
    std::optional<std::string> path_;
    std::string name_;
    Descriptor file_;
    Output out_;
    bool regular_ = false;
    std::optional<BatchManifest> manifest_;  // of a regular file with a name
    WrittenRows before_;
    uint64_t places_ = 0, next_ = 0;
    std::map<uint64_t, std::string> held_;
    std::map<uint64_t, ManifestRow> open_;  // by place: what the manifest is to say
    int64_t written_ = 0;
    uint64_t size_ = 0;  // of a regular file, up to its last whole line
    std::chrono::steady_clock::time_point synced_ = std::chrono::steady_clock::now();
};

}  // namespace runnel::commands
