// EAGLE-3 heads (engine/model/eagle3.h) with random weights, which a test can change.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "gguf/file.h"
#include "gguf/output_file.h"
#include "tests/support/head_tensors.h"

namespace runnel::testing {

struct HeadShape {
    int64_t width = 0, ff = 0;  // 0: the target's width; twice the width
    int64_t heads = 4, kv_heads = 2;
    int64_t head_dim = 0;  // 0: width / heads
    int64_t rows = 0;      // of the output matrix, with d2t; 0: all tokens, without it
    std::array<int32_t, 3> layers = {-1, -1, -1};  // -1: 2, half of the target's, and the fourth from its end
    bool own_embedding = false, own_output = false;  // also if the target's do not fit
    bool norm_before_residual = false, norm_before_fc = false;
    bool divisors = false;  // rope_freqs
    double rope_freq_base = 10000;
    std::string type = "F32";  // of matrices; one whose rows are not whole blocks is F16
    uint64_t seed = 1;
};

class EagleHead : public HeadTensors {
  public:
    // Throws std::invalid_argument for a target without the keys of a model.
    explicit EagleHead(const gguf::File &target, HeadShape shape = {});

    int64_t width() const { return shape_.width; }
    const HeadShape &shape() const { return shape_; }

    // g is the state before the first of the three layers, and y is g. Precondition: the target's width.
    void repeat_tap();
    // The logits of all tokens depend on the last one alone, as in a target without layers that has this output norm:
    // attention finds the token's own cell. Preconditions: one head of the whole width, the target's width, and
    // norm_before_residual.
    void obey_rule(const Values &output_norm);

    // Writes the file, with the target's tokenizer.
    void write(const std::filesystem::path &path, const gguf::OutputOptions &options = {}) const;
    gguf::File write_and_open(const std::filesystem::path &path) const;

    std::vector<int64_t> tokens;  // d2t, which is not one of `tensors`; empty: none
    // Numbers and flags of the architecture: "block_count".
    std::map<std::string, uint32_t> numbers;
    std::vector<int32_t> target_layers;

  private:
    const gguf::File *target_;
    HeadShape shape_;
};

}  // namespace runnel::testing
