// The output of `runnel batch`: writes each line whole, in the order of the input or, with --unordered, as
// soon as it is done. A file has a manifest next to it (batch_manifest.h).
//
// Durability: one write() writes a complete line, so a line that is counted as written survives the end of
// this process, even by kill -9. Against a power failure, a regular file and its manifest are also synced to
// the disk every five seconds and at the end. After a crash, --resume cuts off what follows the last line
// with a record in the manifest, and computes it again. It refuses a file with content that this program
// cannot have written.
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

// The name of the manifest of an output file.
std::string manifest_of(const std::string &output);

// The size of an open file; 0 if it cannot be read.
uint64_t size_of(int fd);

// The lines of an output file that an earlier run wrote.
class WrittenRows {
  public:
    struct Entry {
        WrittenRow row;
        std::string hash;  // of the input line; empty: unknown
    };
    // The answer to this line of the input; null if there is none.
    const Entry *find(int64_t line) const;
    int64_t last() const { return rows_.empty() ? 0 : rows_.back().row.line; }
    int64_t count() const { return static_cast<int64_t>(rows_.size()); }
    int64_t failed() const;
    bool in_order() const { return in_order_; }
    uint64_t bytes() const { return bytes_; }    // of the lines that count; the rest is cut off
    size_t vouched() const { return vouched_; }  // number of lines with a record in the manifest
    // New records for lines that count only because of `force`; they lack the hash of their row.
    const std::vector<ManifestRow> &adopted() const { return adopted_; }

    // Reads a file from its beginning. Lines with a record in the manifest count. Throws InputError if a line
    // differs from its record, if the rest is not what a crash of `batch` can leave, and if a file with lines
    // has no manifest. With `force`, all lines that are answers count.
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
        bool resume = false;     // continue what an earlier run has written,
        bool force = false;      // even if settings or rows have changed
        bool overwrite = false;  // or empty the file, whatever it holds
        bool ordered = true;
    };
    // path: a file, or nullopt for standard output. Throws UsageError when it cannot be opened, is being
    // written by another process, or holds data that these options neither continue nor overwrite. Changes no
    // content yet.
    BatchOutput(const std::optional<std::string> &path, const Options &options);

    const WrittenRows &before() const { return before_; }
    // The value of a setting in the earlier run, if the answers of that run are kept.
    std::optional<std::string> earlier(const std::string &setting) const;
    // Prepares the file: empties it, or cuts off an incomplete end. Throws OutputError, and UsageError that
    // names the settings if those of the earlier run differ.
    void begin(const BatchSettings &settings);

    // Whether the earlier run has answered this row; `content`: the input line. Throws UsageError or InputError
    // if the output was written for other rows.
    bool answered(const RowIdentity &row, std::string_view content) const;
    // Announces the next row in the order of the input; returns its place.
    uint64_t reserve(const RowIdentity &row, std::string_view content);
    // Takes a place's line with its line end; writes all lines whose turn it is. Throws ClosedPipe, OutputError.
    void put(uint64_t place, std::string line);
    // The number of lines that wait for earlier ones.
    size_t held() const { return held_.size(); }
    int64_t written() const { return written_; }
    // The number of places whose line is not written yet.
    uint64_t missing() const { return places_ - static_cast<uint64_t>(written_); }
    const std::string &name() const { return name_; }
    // Syncs. Throws OutputError.
    void close();
    // Records that the output has the answers to all rows. Throws OutputError.
    void complete(const BatchEnd &end);

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
    std::map<uint64_t, ManifestRow> open_;  // by place: records of lines that are not written yet
    int64_t written_ = 0;
    uint64_t size_ = 0;  // of a regular file, up to its last whole line
    std::chrono::steady_clock::time_point synced_ = std::chrono::steady_clock::now();
};

}  // namespace runnel::commands
