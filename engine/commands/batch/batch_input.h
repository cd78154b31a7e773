// The rows of `runnel batch`: lines of the input that are this run's, as far as no earlier run has answered
// them.
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

namespace runnel::commands {

class BatchInput {
  public:
    // Opens the input. All are kept. Throws UsageError for an input that cannot be opened, or is the output.
    BatchInput(const BatchOptions &options, Io &io);

    struct Next {
        // PassedOver: a line that is not this run's, or was answered before; NotYet: no line came in time.
        enum class State { Row, PassedOver, NotYet, End } state;
        Row row = {};                   // may have an error
        std::string_view content = {};  // its line, until the next one is read
        uint64_t bytes = 0;             // of its line
    };
    // The next line, for which it waits so many milliseconds. Throws UsageError and InputError where `output`
    // is the one of another run, InputError where reading fails.
    Next next(int milliseconds, const BatchOutput &output);

    int64_t rows() const { return rows_; }  // seen, with those that were written before
    int64_t kept() const { return kept_; }  // written before
    // Bytes of the input; 0: not known. Of these, bytes of lines that next() has passed over, and of those the
    // part that was written before.
    uint64_t size() const { return size_; }
    uint64_t passed() const { return passed_; }
    uint64_t kept_bytes() const { return kept_bytes_; }

  private:
    void note_unknown(const std::string &key, int64_t line);

    const BatchOptions &options_;
    Io &io_;
    std::string name_;
    Descriptor file_;
    LineReader reader_;
    std::string line_;
    uint64_t size_ = 0, read_ = 0, passed_ = 0, kept_bytes_ = 0;
    int64_t rows_ = 0, kept_ = 0;
    std::set<std::string> unknown_keys_;  // noted
};

}  // namespace runnel::commands
