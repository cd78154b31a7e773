// The loop of `runnel batch`: submits rows to a completion queue and writes the answers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "engine/commands/batch/batch_explain.h"
#include "engine/commands/batch/batch_input.h"
#include "engine/commands/batch/batch_output.h"
#include "engine/commands/batch/batch_progress.h"
#include "engine/commands/batch/row_requests.h"
#include "engine/commands/batch/shared_prompt.h"
#include "engine/commands/io.h"
#include "engine/commands/options.h"
#include "engine/commands/prompt_format.h"
#include "engine/completion/queue.h"
#include "engine/decode/engine.h"
#include "engine/decode/speculation/drafting.h"
#include "gguf/base/timer.h"

namespace runnel::commands {

class BatchRun {
  public:
    // All references must outlive it.
    BatchRun(const BatchOptions &options, decode::Engine &engine, BatchInput &input, BatchOutput &output,
             decode::StopRequest &stop, Io &io);

    // Answers all rows and returns the exit code.
    int loop();

  private:
    struct Waiting {
        RowIdentity row;
        uint64_t place;  // in the output
        uint64_t bytes;  // size of its line
        AnswerText text;
        bool logprobs, prompt_logprobs;
        int64_t max_tokens;
        std::string answer = {};
    };

    void answer_all();
    void expect_every_row(bool finished) const;
    void read_rows();
    void take(const BatchInput::Next &next);
    void finish(const completion::Done &done);
    void fail(const RowIdentity &row, uint64_t place, uint64_t bytes, const std::string &error);
    void note_stop();
    void show_progress();
    void look();

    const BatchOptions &options_;
    decode::Engine &engine_;
    Io &io_;
    decode::StopRequest &stop_;
    BatchInput &input_;
    BatchOutput &output_;
    BatchProgress progress_;
    completion::PromptFormat format_;
    decode::SamplingOptions sampling_;
    RowRequests requests_;
    std::unique_ptr<decode::Drafting> drafts_;  // null: no drafts
    completion::CompletionQueue queue_;
    SharedPrompt shared_;
    std::optional<BatchExplain> explain_;
    base::Clock::time_point started_ = base::Clock::now();
    std::map<completion::RequestId, Waiting> waiting_;
    bool ended_ = false;  // true at the end of the input
    uint64_t answered_bytes_ = 0;
    int64_t errors_, forgotten_ = 0, odd_calls_ = 0;
    bool model_failed_ = false;  // true if a row failed while the model ran
};

}  // namespace runnel::commands
