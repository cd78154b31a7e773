// Every kind of step that a program has, each made into a small program of its own that any device can run:
// rows of random numbers stand for what came before it, and some columns of what it writes become the logits.
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
    std::string name;     // "matrix q4_K 4096 x 14336": no two cases have the same
    std::string example;  // the tensor that it is shown with, or empty
    // The step with the program's own weights; and what the reference (kernels/reference/) is to compute: the same,
    // or of a matrix only the rows that are looked at. Both have the same tokens and the same vocabulary.
    // (Made when they are wanted.)
    std::function<kernels::Program()> program, reference;
    int32_t tokens;    // one sequence of so many; their ids are their numbers
    double tolerance;  // of a device with activations of 11 or 12 bits, relative
    bool rounded;      // whether devices round its activations to integers: it multiplies by matrices
    // Of matrices: all that have this shape and format, for a measurement; and the bytes of one.
    std::vector<kernels::WeightId> same = {};
    size_t bytes = 0;
};

// Of all steps that are the same work (whatever a kernel could depend on) the first; `program` must outlive
// the cases. `attention_tokens`: how long the sequence is that attention is tried with (it takes other ways
// from 64 and 256 tokens on); windows that it would not outgrow are made shorter, so that they hide
// something. Weights of the cases point where the program's do.
std::vector<StepCase> step_cases(const kernels::Program &program, int32_t attention_tokens = 300);

// The matrix of a case `count` times, one after the other through all that are like it: what a device takes
// for it is the time of many less the time of few, by the difference of their numbers.
kernels::Program repeated(const StepCase &step, const kernels::Program &program, int32_t count);

// A program that no file holds: matrices of every format that this program writes, embeddings, an RMS norm, a
// gate, attention with heads of two sizes, experts. For machines without a model. With `large` also matrices
// that are worth measuring.
kernels::Program sample_program(bool large);

}  // namespace runnel::commands
