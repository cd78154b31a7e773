// The file of `run --trace`: one request's life, in the Trace Event Format that chrome://tracing and
// https://ui.perfetto.dev read. Times are in microseconds from the start of the command.
//
//   load model, read prompt
//   submit                       render template, tokenize
//   step                         one step of the queue, which contains:
//     draft                        the last tokens are appended, with drafts of the next ones
//     pass                         a pass through the model, with its tokens, depth (cached tokens before them) and
//                                  logits (rows of logits); with a single sequence also the bytes that the pass must
//                                  read at least (weights, cache), its operations, and the rate of those bytes in MB/s
//     sample                       tokens are chosen and become text
//   write                        text goes to the output
//
// Points in time: "prompt computed" with the number of its tokens that were cached, "first text".
#pragma once

#include <optional>
#include <string>

#include "engine/commands/io.h"
#include "engine/decode/engine.h"
#include "gguf/base/trace.h"

namespace runnel::commands {

// Throws UsageError or OutputRefused if `path` cannot become a trace, or is also the prompt cache.
void check_trace_file(const std::string &path, const std::optional<std::string> &prompt_cache, const Io &io);
void write_trace(const std::string &path, const base::Trace &trace, decode::Engine &engine, Io &io);

}  // namespace runnel::commands
