// What the answers in a batch output were made of, in a file beside it (OUT.resume): so that --resume goes on
// only with the same model, options and rows, and knows its own bytes from others.
//
// Lines of JSON, appended. A header first, and again where the settings change:
//   {"runnel_batch": 1, "output": "DEVICE:INODE:BIRTH", "settings": {"NAME": "VALUE", ...}}
// then, in front of each line of the output, before that is written:
//   {"line": 12, "at": 3456, "bytes": 210, "row": "HASH", "answer": "HASH"}
// line: of the input; at, bytes: where its answer is in the output; row, answer: hashes of both.
//
// After a crash or a power failure either file may end anywhere, or hold zeros where nothing reached the disk.
// Records count up to the first that is not whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/commands/io.h"

namespace runnel::commands {

// 32 hexadecimal digits; against accidents, not against forgers.
std::string content_hash(std::string_view bytes);

// What changes the text of answers, by the names that people know it by.
using BatchSettings = std::vector<std::pair<std::string, std::string>>;

// "--temp was 0.8 and is 0.5; ..."; empty: none differs.
std::string differences(const BatchSettings &before, const BatchSettings &now);

struct ManifestRow {
    int64_t line = 0;
    uint64_t at = 0, bytes = 0;
    std::string row, answer;
};

class BatchManifest {
  public:
    // Reads what is there; nothing is changed. Throws UsageError when it cannot be opened and when it is no
    // manifest, which is left alone.
    explicit BatchManifest(const std::string &path);

    bool exists() const { return settings_.has_value(); }
    const std::string &output() const { return output_; }  // of the last header
    const std::optional<BatchSettings> &settings() const { return settings_; }
    const std::vector<ManifestRow> &rows() const { return rows_; }  // by their place in the output

    // Cuts it down to its first `rows` records; then a header, if those are others. Throws OutputError, as do
    // the others.
    void go_on(const std::string &output, const BatchSettings &settings, size_t rows);
    void append(const ManifestRow &row);
    void sync();

  private:
    void read(const std::string &text);
    void write_header(const std::string &output, const BatchSettings &settings);
    void write(const std::string &line);
    [[noreturn]] void fail() const;

    std::string path_, name_;
    std::optional<Descriptor> file_;  // opened to be written
    uint64_t good_ = 0;               // bytes of whole lines
    uint64_t header_ = 0;             // where the last header is
    std::vector<uint64_t> begins_;    // where each record is
    std::string output_;
    std::optional<BatchSettings> settings_;
    std::vector<ManifestRow> rows_;
};

}  // namespace runnel::commands
