// The statistics and notes at the end of `runnel batch`.
#pragma once

#include <cstdint>

#include "engine/commands/io.h"
#include "engine/commands/json.h"
#include "engine/commands/options.h"
#include "engine/commands/stored_prompts.h"
#include "engine/completion/queue.h"
#include "engine/decode/engine.h"

namespace runnel::commands {

struct BatchTotals {
    uint64_t seed;
    int64_t rows, written, kept, errors;  // rows: read, written now, written by an earlier run, with errors
    int64_t forgotten;                    // tokens that did not fit the context
    int64_t odd_calls;                    // answers with text that looks like a tool call but is not one
    double seconds;
    bool drafts;
    const StoredPrompts &stored;
    Json paging = {};  // of --explain; null without
};

// Writes the statistics and notes.
void report_batch(const BatchOptions &options, const BatchTotals &totals, decode::Engine &engine,
                  const completion::CompletionQueue &queue, Io &io);

}  // namespace runnel::commands
