// `runnel imatrix`: how much each column of a model's matrices matters for a text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/commands/io.h"

namespace runnel::commands {

struct ImatrixOptions {
    std::string model, text, output;
    std::vector<std::string> merged;  // files whose sums are added
    std::string shown;                // a file whose statistics are printed, without a model
    int32_t chunk_size = 512;         // tokens
    int64_t chunks = -1;              // number of chunks to use; -1: all
    bool with_output = false;         // also the output matrix
    bool json = false;
    int threads = 0;  // 0: the physical cores
};

// Throws UsageError, InputError, and what loading a model throws. Interrupted: nothing is written.
int imatrix(const ImatrixOptions &options, Io &io);

}  // namespace runnel::commands
