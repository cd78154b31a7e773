// What run and chat share: from flags to a sampler, and from a finished answer to numbers.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/commands/io.h"
#include "engine/commands/json.h"
#include "engine/commands/options.h"
#include "engine/decode/engine.h"
#include "engine/decode/generator.h"
#include "engine/decode/speculation/drafting.h"

namespace runnel::commands {

decode::EngineOptions engine_options(const ModelOptions &options);
// With the progress of loading shown, which an interrupt ends. Keeps `io` and `stop`.
decode::EngineOptions engine_options(const ModelOptions &options, Io &io, const decode::StopRequest &stop);

// Of a model with these options; nothing when no flag asks for drafts. Throws UsageError.
std::optional<decode::DraftingOptions> drafting_options(const DraftFlags &flags, const ModelOptions &model);

// What speculation for an engine needs, with its notes shown; null when no flag asks for it. The progress of
// loading is shown, which an interrupt ends. Keeps `io` and `stop`.
std::unique_ptr<decode::Drafting> drafting(const DraftFlags &flags, const ModelOptions &model,
                                           decode::Engine &engine, int32_t sequences, Io &io,
                                           const decode::StopRequest &stop);
// Has the model's engine leave room for them.
void leave_room(decode::EngineOptions &engine, const DraftFlags &flags);

// With the seed that was asked for or a random one, and the biases parsed. Throws UsageError.
decode::SamplingOptions sampling_options(const GenerationFlags &flags);
decode::GenerationOptions generation_options(const GenerationFlags &flags);

// What stays of a text that outgrows the context: its first tokens, and its last.
struct Room {
    size_t context;
    Overflow overflow;
    size_t fixed;  // tokens in front of the first message: the system prompt and what belongs to it

    // For GenerationOptions::shift_keeping.
    std::optional<size_t> keeping() const;
    // A prompt that does not fit leaves a quarter of the context for the answer then. Returns how many tokens
    // went.
    size_t fit(std::vector<text::TokenId> &prompt) const;
};

// One answer in numbers.
struct Report {
    std::string model;
    uint64_t seed;
    double load_seconds;
    decode::Timings timings;
    size_t tokens;  // generated
    std::string finish_reason;
    std::string placement;  // where the model's layers ran
    std::optional<decode::SpeculationCounts> speculation = {};
};
Json speculation_json(const decode::SpeculationCounts &counts);
std::string speculation_text(const decode::SpeculationCounts &counts);  // a line
Json timings_json(const Report &report);        // load_ms, ttft_ms, prefill_tps, decode_tps
Json report_json(const Report &report);         // for --stats-file
std::string report_text(const Report &report);  // lines for people

// Files that a command is about to read, so that no output is one of them; "-" and what is not there are
// passed over.
void note_inputs(std::initializer_list<std::optional<std::string>> paths);
// Before the work: throws gguf::OutputRefused for a --stats-file that must not be written.
void check_stats_file(const StatsFlags &flags, const Io &io);

// --stats, --stats-file and --stats-fd. Throws gguf::WriteError when the file cannot be written.
void write_stats(const StatsFlags &flags, const std::string &text, const Json &json, Io &io);
void write_stats(const StatsFlags &flags, const Report &report, Io &io);

// The system prompt of --system or --system-file; empty when there is none. Throws UsageError for both.
std::string system_prompt(const std::optional<std::string> &text, const std::optional<std::string> &file,
                          int in, const decode::StopRequest *stop = nullptr);

}  // namespace runnel::commands
