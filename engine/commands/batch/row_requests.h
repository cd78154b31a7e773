// Makes requests from the rows of a batch. Settings of a row override those of the run.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>

#include "engine/commands/batch/batch_row.h"
#include "engine/commands/io.h"
#include "engine/commands/options.h"
#include "engine/completion/prompt.h"
#include "engine/completion/request.h"

namespace runnel::commands {

class RowRequests {
  public:
    // All references but `stop` must outlive it. Throws UsageError, and what reading the options' files throws.
    RowRequests(const BatchOptions &options, const completion::PromptFormat &format,
                const decode::SamplingOptions &sampling, const decode::StopRequest &stop, Io &io);

    // The request of a row: a turn of a conversation, or a text to complete without a template. Throws
    // std::runtime_error if the row cannot be answered.
    completion::Request of(const Row &row);

    const std::string &system() const { return system_; }
    const std::optional<grammar::Source> &constraint() const { return constraint_; }

  private:
    void note_problems(const text::ToolUse &tools, int64_t line);

    const BatchOptions &options_;
    const completion::PromptFormat &format_;
    const decode::SamplingOptions &sampling_;
    Io &io_;
    const std::string system_;
    const completion::Limits limits_;
    const std::optional<grammar::Source> constraint_;
    const std::shared_ptr<const text::ToolUse> tools_;  // for rows without tools of their own
    std::set<std::string> problems_;                    // of tool schemas, noted already
    bool noted_ = false;                                // format_.note() was shown
};

}  // namespace runnel::commands
