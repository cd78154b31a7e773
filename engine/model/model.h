// Builds a Program from a GGUF file: reads hyperparameters, finds the family, and checks that the file's
// tensors match its metadata.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/file.h"
#include "kernels/program.h"

namespace runnel::model {

// The file is valid GGUF but not a model that can be run: unknown architecture, or a missing or contradictory
// key or tensor, which what() names in one line. Exit code 3.
class ModelError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The keys that every family shares, range-checked. Named as in the file, without the architecture
// prefix.
struct HyperParameters {
    std::string architecture;
    int64_t vocab;  // rows of token_embd.weight
    int64_t context_length;
    bool context_is_limit = false;  // results beyond this context would be wrong
    int64_t embedding_length;
    int32_t block_count;          // without the draft layers
    int32_t draft_layers;         // after the others: multi-token prediction (draft_block.h)
    int64_t feed_forward_length;  // if layers differ, this and head_count_kv are the largest
    int32_t head_count, head_count_kv;
    int32_t key_length, value_length;  // of full-attention layers, if window layers have other sizes
    float norm_epsilon;                // of RMS norms if the file has that key, else of layer norms
    int32_t rope_dimensions;
};

struct Model {
    HyperParameters hyper;
    kernels::Program program;
};

// Throws ModelError. The Program's weights point into the mapped file, which must outlive them. context: the
// context length in use, which LongRoPE's factors depend on; 0: the model's own.
Model build(const gguf::File &file, int64_t context = 0);

// Reads and checks only the hyperparameters (for `inspect`, which also works on files that cannot be run).
HyperParameters read_hyper_parameters(const gguf::File &file);

std::vector<std::string_view> supported_architectures();

}  // namespace runnel::model
