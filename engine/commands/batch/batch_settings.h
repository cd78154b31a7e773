// What decides the text of a batch's answers beside the rows, for the manifest of its output.
#pragma once

#include <optional>
#include <string>

#include "engine/commands/batch/batch_manifest.h"
#include "engine/commands/options.h"
#include "engine/decode/engine.h"
#include "engine/grammar/source.h"

namespace runnel::commands {

inline constexpr const char *kSeedSetting = "--seed";

// How rows are divided and computed together (--parallel, -b, -t, --unordered) is no part of it: it changes no
// byte. Neither are drafts, unless the rule is rejection. Of texts and files the hash is kept. Throws what
// reading the files throws.
BatchSettings batch_settings(const BatchOptions &options, decode::Engine &engine,
                             const decode::SamplingOptions &sampling, const std::string &system,
                             const std::optional<grammar::Source> &constraint);

}  // namespace runnel::commands
