// Shared by the commands that generate: makes engines and requests from flags, and statistics from finished
// answers.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/commands/io.h"
#include "engine/commands/json.h"
#include "engine/commands/options.h"
#include "engine/completion/file_sampling.h"
#include "engine/completion/queue.h"
#include "engine/decode/engine.h"
#include "engine/decode/speculation/drafting.h"

namespace runnel::commands {

// The model's options, with --load-mode auto as mmap where too few tokens are generated for it to pay.
ModelOptions model_for(ModelOptions model, const GenerationFlags &generation);

decode::EngineOptions engine_options(const ModelOptions &options);
// Makes the engine's options, with a progress line for loading, which an interrupt ends. Keeps references to `io` and
// `stop`.
decode::EngineOptions engine_options(const ModelOptions &options, Io &io, const decode::StopRequest &stop);

// Drafting for a model with the options `model`; nullopt if no flag requests drafts (--mtp auto does not). Throws
// UsageError.
std::optional<decode::DraftingOptions> drafting_options(const DraftFlags &flags, const ModelOptions &model);

// Sets up speculation for an engine and shows its notes; null if no flag requests it and, under --mtp auto, the
// engine has no draft block. Shows the progress of loading, which an interrupt ends. `io` and `stop` must outlive
// the result. Throws UsageError for --mtp on without a block.
std::unique_ptr<decode::Drafting> drafting(const DraftFlags &flags, const ModelOptions &model,
                                           decode::Engine &engine, int32_t sequences, Io &io,
                                           const decode::StopRequest &stop);
// Makes a speculator for each answer of a queue; empty without `drafts`, which must outlive the queue.
decode::MakeSpeculator speculators(decode::Drafting *drafts);
// Reserves the drafts' memory in the options of the model's engine.
void leave_room(decode::EngineOptions &engine, const DraftFlags &flags);

// The sampling settings that the model's file gives, less those that the user chose.
completion::FileSampling file_sampling(const GenerationFlags &flags, const gguf::File &file);
// `flags` with those settings. Notes the keys of the file that are ignored.
GenerationFlags with_file_sampling(GenerationFlags flags, const gguf::File &file, Io &io);
// For --stats: a line, or nothing; and an object with the settings' names.
std::string file_sampling_text(const completion::FileSampling &sampling);
Json file_sampling_json(const completion::FileSampling &sampling);
// The sampling options, with the given or a random seed and the parsed biases. Throws UsageError.
decode::SamplingOptions sampling_options(const GenerationFlags &flags);
completion::Limits limits(const GenerationFlags &flags);

// The finish reason of the answers that a stop ends.
completion::FinishReason finish_reason(const decode::StopRequest &stop);

// Writes a note for each tool call of an answer, because the answer's text omits them, and a note if text that looks
// like a call is not one. `where` is appended to each call.
void note_calls(const completion::Done &done, Io &io, std::string_view where = "");
// Whether the answer broke off before its reasoning ended: it has neither text nor calls.
bool ended_in_reasoning(const completion::Done &done, bool has_reasoning, bool has_text);

// The statistics of one run.
struct Report {
    std::string model;
    uint64_t seed;
    double load_seconds;
    completion::Timings timings;
    size_t prompt_tokens, tokens;  // read, and generated
    std::string finish_reason;
    std::string placement;  // where the model's layers ran
    std::optional<decode::SpeculationCounts> speculation = {};
    std::optional<StoredReport> stored = {};  // nullopt: no prompts on the disk were used
    completion::FileSampling sampling = {};   // the settings that the model's file gave
    kernels::ExpertTraffic experts = {};      // of all requests so far; zeros: GPUs hold all experts
};
Report report(const std::string &model, uint64_t seed, const decode::Engine &engine,
              const completion::Done &done);
Json speculation_json(const decode::SpeculationCounts &counts);
std::string speculation_text(const decode::SpeculationCounts &counts);  // a line
Json timings_json(const Report &report);        // load_ms, ttft_ms, prefill_tps, decode_tps
Json report_json(const Report &report);         // for --stats-file
std::string report_text(const Report &report);  // lines for people

// Records files that a command is about to read, so that no output overwrites them;
// ignores "-" and missing files.
void note_inputs(std::initializer_list<std::optional<std::string>> paths);
// Call before the work: throws gguf::OutputRefused if --stats-file must not be written, UsageError if it is the same
// file as one of `others`.
void check_stats_file(const StatsFlags &flags, const Io &io,
                      std::initializer_list<std::optional<std::string>> others = {});

// Writes the statistics to the outputs of --stats, --stats-file and --stats-fd. Throws gguf::WriteError if the file
// cannot be written.
void write_stats(const StatsFlags &flags, const std::string &text, const Json &json, Io &io);
void write_stats(const StatsFlags &flags, const Report &report, Io &io);

}  // namespace runnel::commands
