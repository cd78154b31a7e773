// The settings that, with the rows, determine the text of a batch's answers; for the manifest of its output.
#pragma once

#include <optional>
#include <string>

#include "engine/commands/batch/batch_manifest.h"
#include "engine/commands/batch/batch_output.h"
#include "engine/commands/options.h"
#include "engine/decode/engine.h"
#include "engine/grammar/source.h"

namespace runnel::commands {

// The sampling options of the run: those of `options`, else of the model's file. Without --seed, a resumed run uses the
// seed of the earlier one, and all shards use the same seed: their answers are those of one run.
decode::SamplingOptions batch_sampling(const BatchOptions &options, const gguf::File &model,
                                       const BatchOutput &output, Io &io);

// Leaves out --parallel, -b, -t, --unordered and --timings, which change no byte of a text, and drafts unless the rule is
// rejection. The value of a text or a file is its hash. Throws what reading the files throws.
BatchSettings batch_settings(const BatchOptions &options, decode::Engine &engine,
                             const decode::SamplingOptions &sampling, const std::string &system,
                             const std::optional<grammar::Source> &constraint);

}  // namespace runnel::commands
