// The manifest of a batch output, a file next to it (OUT.resume). It records what the answers were computed
// from, so that --resume continues only with the same model, options and rows, and recognizes its own lines.
//
// JSON lines. A header comes first, and another one whenever the settings change:
//   {"runnel_batch": 3, "output": "DEVICE:INODE:BIRTH", "settings": {"NAME": "VALUE", ...}}
// then a record for each line of the output, written before that line:
//   {"line": 12, "at": 3456, "bytes": 210, "row": "HASH", "answer": "HASH"}
// line: its number in the input; at, bytes: place of its answer in the output; row, answer: hashes of both.
//
// After a crash or a power failure, either file may end anywhere, or hold zeros for data that did not reach
// the disk.
// The first incomplete record and all after it are ignored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/commands/io.h"

namespace runnel::commands {

// 32 hexadecimal digits. Detects accidental changes, not forgeries.
std::string content_hash(std::string_view bytes);

// The settings that determine the text of answers: name ("--temp", "the model") and value.
using BatchSettings = std::vector<std::pair<std::string, std::string>>;

// "--temp was 0.8 and is 0.5; ..."; empty if none differs.
std::string differences(const BatchSettings &before, const BatchSettings &now);

struct ManifestRow {
    int64_t line = 0;
    uint64_t at = 0, bytes = 0;
    std::string row, answer;
};

class BatchManifest {
  public:
    // Reads the manifest, if it exists, and changes nothing. Throws UsageError if the file cannot be opened or
    // is not a manifest.
    explicit BatchManifest(const std::string &path);

    bool exists() const { return settings_.has_value(); }
    const std::string &output() const { return output_; }  // of the last header
    const std::optional<BatchSettings> &settings() const { return settings_; }
    const std::vector<ManifestRow> &rows() const { return rows_; }  // by their place in the output

    // Truncates the manifest to its first `rows` records and adds a header if output or settings have
    // changed. This and the functions below throw OutputError.
    void go_on(const std::string &output, const BatchSettings &settings, size_t rows);
    void append(const ManifestRow &row);
    void sync();

  private:
    void read(const std::string &text);
    void write_header(const std::string &output, const BatchSettings &settings);
    void write(const std::string &line);
    [[noreturn]] void fail() const;

    std::string path_, name_;
    std::optional<Descriptor> file_;  // open for writing
    uint64_t good_ = 0;               // bytes of whole lines
    uint64_t header_ = 0;             // offset of the last header
    std::vector<uint64_t> begins_;    // offset of each record
    std::string output_;
    std::optional<BatchSettings> settings_;
    std::vector<ManifestRow> rows_;
};

}  // namespace runnel::commands
