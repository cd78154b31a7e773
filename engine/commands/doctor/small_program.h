// A program of one step, made of a larger program's: random rows are its inputs, and some columns of its output the logits.
#pragma once

#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kernels/program.h"

namespace runnel::commands {

inline constexpr int64_t kComparedColumns = 64;  // of an output; all if it has fewer

// Adds an F32 matrix, and keeps its memory.
kernels::WeightId add_floats(kernels::Program &program, std::string name, int64_t rows, int64_t cols,
                             std::vector<float> values);

// Random values of size 1, a few of them large, as activations have them.
std::vector<float> activations(int64_t count, std::mt19937 &random);

// A matrix [columns][width] that selects columns: each row has a single one, at positions spread over the width, including the
// first and the last. `chosen` receives the positions.
std::vector<float> selection(int64_t columns, int64_t width, std::vector<int64_t> *chosen = nullptr);

class SmallProgram {
  public:
    // Has the weights and slots of `from`, whose bytes must stay.
    SmallProgram(const kernels::Program &from, uint32_t seed, int32_t tokens);

    // Fills a slot with `tokens` random rows, unless it is kNoSlot or filled.
    SmallProgram &input(kernels::Slot slot);
    SmallProgram &step(kernels::Step step);
    // Computes only the rows of a part that are compared, as F32. Returns the slot of the result.
    kernels::Slot some_rows(kernels::Slot in, const kernels::Linear::Part &part);
    // The program, with some columns of the slot as logits.
    kernels::Program look_at(kernels::Slot slot, float softcap = 0);

    int64_t width(kernels::Slot slot) const { return program_.slots[static_cast<size_t>(slot)].width; }
    kernels::Program &program() { return program_; }

  private:
    kernels::WeightId some_of(kernels::WeightId bias, const std::vector<int64_t> &chosen);

    kernels::Program program_;
    std::mt19937 random_;
    int32_t tokens_;
    std::set<kernels::Slot> filled_;
};

}  // namespace runnel::commands
