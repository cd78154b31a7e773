// `runnel quantize IN OUT TYPE`: a model file in another format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/commands/io.h"
#include "engine/quantize/quantizer.h"
#include "engine/quantize/type_search.h"

namespace runnel::commands {

// Chunks of a text, unless --chunks is given: to choose types on, and to calibrate AWQ or GPTQ on.
inline constexpr int64_t kTargetChunks = 16, kCalibrationChunks = 128;

// A type per tensor, chosen for a size.
struct TargetOptions {
    std::optional<uint64_t> size;           // bytes of the written files
    std::optional<double> bits_per_weight;  // of the tensors' data
    std::optional<double> divergence;       // most KL divergence from the source, measured on held-out text
    quantize::Cost cost = quantize::Cost::Disk;
    std::string types;                   // to choose from, "Q4_K,Q6_K"; empty: all
    std::string text;                    // on which the sensitivity is measured; empty: no measurement
    std::string sensitivity;             // file that keeps it: written with a text, read without
    std::string held_out;                // on which the choice is judged; empty: the end of the text
    int rounds = 1;                      // most measurements around the choice
    int32_t context = 256;               // tokens of a chunk of the text
    std::optional<int64_t> chunks = {};  // most chunks of a text; -1: all
    bool report = false;

    bool is_given() const { return size || bits_per_weight || divergence; }
};

struct QuantizeOptions {
    std::string source, destination, type;  // no type with a target
    TargetOptions target;
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
