// The rows of `runnel batch`: the input lines of this run's shard, except those that an earlier run has
// answered.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "engine/commands/batch/batch_output.h"
#include "engine/commands/batch/batch_row.h"
#include "engine/commands/chat/line_reader.h"
#include "engine/commands/io.h"
#include "engine/commands/options.h"
#include "gguf/base/checksum.h"

namespace runnel::commands {

class BatchInput {
  public:
    // Opens the input. Both references must outlive it. Throws UsageError if it cannot be opened or is the output.
    BatchInput(const BatchOptions &options, Io &io);

    struct Next {
        // PassedOver: a line of another shard, a blank line or an answered one; NotYet: no line came in time.
        enum class State { Row, PassedOver, NotYet, End } state;
        Row row = {};                   // may have an error
        std::string_view content = {};  // its line, valid until next()
        uint64_t bytes = 0;             // size of its line
    };
    // Waits up to `milliseconds` for the next line. Throws UsageError or InputError if `output` belongs to
    // another run, InputError if reading fails.
    Next next(int milliseconds, const BatchOutput &output);

    int64_t rows() const { return rows_; }  // rows read, including those of kept()
    int64_t kept() const { return kept_; }  // rows that an earlier run has answered
    // Size of the input in bytes (0: unknown); bytes of the lines that next() has passed over; bytes of those
    // lines that an earlier run has answered.
    uint64_t size() const { return size_; }
    uint64_t passed() const { return passed_; }
    uint64_t kept_bytes() const { return kept_bytes_; }
    // What was read so far, for the manifest: lines of all shards, rows of this one.
    BatchEnd end() const;

  private:
    void note_unknown(const std::string &key, int64_t line);

    const BatchOptions &options_;
    Io &io_;
    std::string name_;
    Descriptor file_;
    LineReader reader_;
    std::string line_;
    base::Checksum sum_;  // of all lines
    uint64_t size_ = 0, read_ = 0, passed_ = 0, kept_bytes_ = 0;
    int64_t rows_ = 0, kept_ = 0;
    std::set<std::string> unknown_keys_;  // those that a note has named
};

}  // namespace runnel::commands
