// `runnel batch --join OUT...`: puts the outputs of all shards of a batch together, in the order of the input: the
// bytes that one run without shards would have written.
//
// Everything is checked before the first byte is written: each output against its manifest (every line unchanged,
// the run complete), the manifests against each other (same settings, version, input and number of shards), and
// that each row is there exactly once.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/commands/io.h"

namespace runnel::commands {

struct JoinOptions {
    std::vector<std::string> shards;    // outputs, in any order, each beside its manifest
    std::optional<std::string> output;  // nullopt: standard output
    bool force = false;                 // join even if settings or versions differ
};

// Writes the rows and returns the exit code. The output file appears when it is complete. If shards are missing or
// incomplete, writes the commands that compute them to stderr and throws InputError. Throws InputError for damaged
// or mixed outputs, UsageError if a file cannot be opened, has no manifest or is being written.
int join_batch(const JoinOptions &options, Io &io);

}  // namespace runnel::commands
