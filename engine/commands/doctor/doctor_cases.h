// Turns every kind of step of a program into a small test program that any device can run: random rows
// replace the step's inputs, and some columns of its output become the logits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/program.h"

namespace runnel::commands {

struct StepCase {
    std::string name;     // unique: "matrix q4_K 4096 x 14336"
    std::string example;  // a tensor of this shape and format, or empty
    // program: the step with the program's own weights, for the device. reference: the program for the reference
    // backend (kernels/reference/): the same or, for a matrix, only the rows that are compared. Both have the same
    // tokens and vocabulary size. (They are functions because programs are large.)
    std::function<kernels::Program()> program, reference;
    int32_t tokens;    // length of the one sequence; a token's id is its index
    double tolerance;  // relative error allowed with activations of 11 or 12 bits
    bool rounded;      // devices round the activations to integers (steps with matrices)
    // For matrices: all weights of this shape and format, for a measurement.
    std::vector<kernels::WeightId> same = {};
    size_t bytes = 0;
};

// One case for each kind of work: steps that agree in everything a kernel could depend on are one case.
// `program` must outlive the cases. `attention_tokens`: length of the sequence that tests attention (other code
// paths start at 64 and 256 tokens); longer windows are shortened, so that they take effect. The cases
// use the program's weights.
std::vector<StepCase> step_cases(const kernels::Program &program, int32_t attention_tokens = 300);

// `count` products of the case's matrix shape, alternating through all such matrices. A device's time per
// product is the time of many minus the time of few, divided by the difference of their numbers.
kernels::Program repeated(const StepCase &step, const kernels::Program &program, int32_t count);

// A synthetic program for machines without a model: matrices of every format that this program
// writes, embeddings, an RMS norm, a gate, attention with heads of two sizes, experts. `large` adds
// matrices that are worth measuring.
kernels::Program sample_program(bool large);

}  // namespace runnel::commands
