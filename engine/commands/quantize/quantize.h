// `runnel quantize IN OUT TYPE`: a model file in another format.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/commands/io.h"
#include "engine/quantize/quantizer.h"

namespace runnel::commands {

struct QuantizeOptions {
    std::string source, destination, type;
    std::string importance;                 // file; empty: none
    std::vector<std::string> tensor_types;  // "REGEX=TYPE"
    std::string tensor_type_file;           // more of them, one per line
    std::vector<std::string> overrides;     // "KEY=TYPE:VALUE"
    bool keep_split = false;
    std::string output_type, embedding_type;
    std::vector<int64_t> pruned;  // layers
    bool pure = false, leave_output = false, allow_requantize = false;
    bool dry_run = false, json = false, overwrite = false;
    quantize::Method method = quantize::Method::Standard;
    int threads = 0;  // 0: the physical cores
};

// Throws UsageError for types that do not exist and for a destination that must not be replaced, InputError for what
// the quantizer refuses, OutputError when the disk is too small.
int quantize_model(const QuantizeOptions &options, Io &io);

}  // namespace runnel::commands
