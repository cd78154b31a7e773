// The manifest of a batch output, a file next to it (OUT.resume). It records what the answers were computed
// from, so that --resume continues only with the same model, options and rows, and recognizes its own lines.
//
// JSON lines. A header comes first, and another one whenever the settings change:
//   {"runnel_batch": 3, "output": "DEVICE:INODE:BIRTH", "settings": {"NAME": "VALUE", ...}}
// then a record for each line of the output, written before that line:
//   {"line": 12, "at": 3456, "bytes": 210, "row": "HASH", "answer": "HASH"}
// line: its number in the input; at, bytes: place of its answer in the output; row, answer: hashes of both.
// A run that has answered all of its rows ends the manifest with
//   {"end": {"rows": 40, "lines": 120, "bytes": 9876, "input": "HASH", "version": "COMMIT"}}
// rows: of this shard, that is the number of lines in the output; lines, bytes, input: length and hash of the
// whole input; version: of the program. `batch --join` needs it as the proof that the shard is complete. It
// comes last because the input may be a pipe; resuming removes it until the run is complete again.
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
#include "gguf/base/checksum.h"

namespace runnel::commands {

// 32 hexadecimal digits. Detects accidental changes, not forgeries.
std::string content_hash(std::string_view bytes);
std::string shown_hash(const base::Checksum::Value &value);

// The settings that determine the text of answers: name ("--temp", "the model") and value.
using BatchSettings = std::vector<std::pair<std::string, std::string>>;

// "--temp was 0.8 and is 0.5; ..."; empty if none differs.
std::string differences(const BatchSettings &before, const BatchSettings &now);

struct ManifestRow {
    int64_t line = 0;
    uint64_t at = 0, bytes = 0;
    std::string row, answer;
};

// What a complete run says of its rows and its input.
struct BatchEnd {
    uint64_t rows = 0;              // of this shard
    uint64_t lines = 0, bytes = 0;  // of the whole input
    std::string input = {}, version = {};
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
    const std::optional<BatchEnd> &end() const { return end_; }     // of a complete run
    // True if --resume --force has continued the output with other settings, or kept rows without a record.
    bool is_mixed() const { return is_mixed_; }

    // Truncates the manifest to its first `rows` records and adds a header if output or settings have
    // changed. This and the functions below throw OutputError.
    void go_on(const std::string &output, const BatchSettings &settings, size_t rows);
    void append(const ManifestRow &row);
    void append(const BatchEnd &end);
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
    std::optional<BatchEnd> end_;
    uint64_t end_at_ = 0;  // its offset
    bool is_mixed_ = false;
};

}  // namespace runnel::commands
