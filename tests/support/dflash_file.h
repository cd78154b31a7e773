// DFlash drafters (engine/model/dflash.h) with random weights, which a test can change.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "gguf/file.h"
#include "gguf/output_file.h"
#include "tests/support/head_tensors.h"

namespace runnel::testing {

struct DFlashShape {
    int64_t ff = 0;  // 0: twice the target's width
    int64_t layers = 2, heads = 4, kv_heads = 2;
    int64_t head_dim = 0;  // 0: width / heads
    int64_t rows = 0;      // of the output matrix, with d2t; 0: all tokens, without it
    std::vector<int32_t> taps =
        {};  // target_layers; empty: 1, half of the target's, and the third from its end
    uint32_t block = 16;
    int32_t mask = 1;    // the token
    int64_t window = 0;  // of every other layer; 0: none
    bool own_embedding = false, own_output = false;
    bool values = true;                                      // attn_v
    bool post_norms = false, scales = false, sinks = false;  // scales: layer_output_scale, with post_norms
    bool causal = false, gelu = false;
    bool transforms = false;  // factors of embeddings, scores, attention's output and logits, and a soft-cap
    std::string type = "F32";
    uint64_t seed = 1;
};

class DFlashFile : public HeadTensors {
  public:
    // Throws std::invalid_argument for a target without the keys of a model.
    explicit DFlashFile(const gguf::File &target, DFlashShape shape = {});

    const DFlashShape &shape() const { return shape_; }

    // Writes the file, with the target's tokenizer and the mask token.
    void write(const std::filesystem::path &path, const gguf::OutputOptions &options = {}) const;

    std::map<std::string, uint32_t> numbers;  // of the architecture: "block_count"
    std::vector<int64_t> tokens;              // d2t, which is not one of `tensors`; empty: none

  private:
    const gguf::File *target_;
    DFlashShape shape_;
};

}  // namespace runnel::testing
