// What goes into the matrices of a model while it reads a text: the rows of activations that each is multiplied
// with, handed out one by one. Importance matrices are made of them (engine/quantize/importance_sums.h).
//
// The program runs as it is, on the CPU's own backend, but in parts that end in front of every matrix: there its
// input is read. Inside a mixture of experts nothing can be read; what the last of an expert's matrices meets is
// computed once more, for the tokens that chose the expert.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/device.h"
#include "kernels/program.h"

namespace runnel::kernels {

// A row of input of matrix `matrix` of the tensor's `matrices` (experts, or heads); one if it has a single one.
using ActivationSink = std::function<void(std::string_view tensor, int64_t matrix, int64_t matrices,
                                          std::span<const float> input)>;

class ActivationRun {
  public:
    // `program` and the file behind its weights must outlive the run. with_output: also the input of the output
    // matrix. Throws BackendError.
    ActivationRun(const Program &program, const Device &device, int32_t context, bool with_output,
                  ActivationSink sink);
    ~ActivationRun();

    // The tokens from position 0 on, with an empty cache. False when *cancel became true: what the sink was told
    // of this text is then incomplete. Precondition: 0 < tokens.size() <= context.
    bool run(std::span<const int32_t> tokens, const std::atomic<bool> *cancel = nullptr);

  private:
    class HiddenOfExperts;

    void observe(const Linear &step);
    void observe(const HeadLinear &step);
    bool observe(const Experts &step, size_t index, const std::atomic<bool> *cancel);
    std::span<const float> row(Slot slot, size_t token);

    Program program_;
    std::vector<size_t> begins_;  // of the parts
    std::unique_ptr<Backend> backend_;
    std::unique_ptr<HiddenOfExperts> hidden_;  // null without experts
    int32_t context_;
    bool with_output_;
    ActivationSink sink_;
    size_t tokens_ = 0;  // of the text at hand
};

}  // namespace runnel::kernels
