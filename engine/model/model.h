// From a GGUF file to a Program: hyper-parameters, the table of families, and the checks that the file's
// tensors are what its metadata says.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/file.h"
#include "kernels/program.h"

namespace runnel::model {

// The file is valid GGUF but not a model that can be run: unknown architecture, missing or contradictory key
// or tensor. One line that names it. Exit code 3.
class ModelError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The keys that every family shares, checked for range. Names as in the file, without the architecture
// prefix.
struct HyperParameters {
    std::string architecture;
    int64_t vocab;  // rows of token_embd.weight
    int64_t context_length;
    int64_t embedding_length;
    int32_t block_count;          // without the draft layers
    int32_t draft_layers;         // behind the others: multi-token prediction, not used
    int64_t feed_forward_length;  // where layers differ, this and head_count_kv are the largest
    int32_t head_count, head_count_kv;
    int32_t key_length, value_length;  // of layers that see all earlier tokens, if others have other sizes
    float norm_epsilon;                // of RMS norms where the file has that key, else of layer norms
    int32_t rope_dimensions;
};

struct Model {
    HyperParameters hyper;
    kernels::Program program;
};

// Throws ModelError. The Program's weights point into the file's mapping: the file must outlive them.
// context: the length that will be used, which LongRoPE's factors depend on; 0: the model's own.
Model build(const gguf::File &file, int64_t context = 0);

// Reads and checks the hyper-parameters alone (for `inspect`, which also works on files that cannot be run).
HyperParameters read_hyper_parameters(const gguf::File &file);

std::vector<std::string_view> supported_architectures();

}  // namespace runnel::model
