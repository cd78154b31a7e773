// `runnel split` and `runnel merge`: a model as several files, and as one again.
#pragma once

#include <cstdint>
#include <string>

#include "engine/commands/io.h"
#include "engine/quantize/model_parts.h"

namespace runnel::commands {

struct SplitOptions {
    std::string source;
    std::string destination;  // split: the beginning of the parts' names; empty: beside the source
    quantize::PartLimits limits;
    bool metadata_apart = false;  // split: the first part has no tensors
    bool dry_run = false, json = false;
};

// Throw UsageError for a destination that must not be replaced, and if there is nothing to do; OutputError when the disk
// is too small.
int split_model(const SplitOptions &options, Io &io);
int merge_model(const SplitOptions &options, Io &io);

}  // namespace runnel::commands
