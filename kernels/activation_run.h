// Observes the inputs of a model's matrices while it processes a text: calls a sink with every row of activations
// that a matrix is multiplied with. Importance matrices are made from these (engine/quantize/importance_sums.h).
//
// The unchanged program runs on the CPU backend in parts, each of which ends before a step with a matrix, so that the
// step's input can be read. The activations inside an Experts step cannot be read: the input of each expert's down
// matrix is computed again for the tokens routed to it.
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

// Receives one input row of matrix number `matrix` of a tensor that holds `matrices` (one per expert or head; else 1).
using ActivationSink = std::function<void(std::string_view tensor, int64_t matrix, int64_t matrices,
                                          std::span<const float> input)>;

// The matrices of a step whose inputs an ActivationRun can observe: those with the same input together.
std::vector<std::vector<WeightId>> matrices_by_input(const Step &step);

class ActivationRun {
  public:
    // `program` and the file behind its weights must outlive the run. with_output: also the input of the output
    // matrix. Throws BackendError.
    ActivationRun(const Program &program, const Device &device, int32_t context, bool with_output,
                  ActivationSink sink);
    ~ActivationRun();

    // Processes the tokens from position 0 on, with an empty cache. False when *cancel became true; the sink then
    // lacks rows of this text. Precondition: 0 < tokens.size() <= context.
    bool run(std::span<const int32_t> tokens, const std::atomic<bool> *cancel = nullptr);

  private:
    class HiddenOfExperts;

    void observe(const Linear &step);
    void observe(const HeadLinear &step);
    bool observe(const Experts &step, size_t index, const std::atomic<bool> *cancel);
    std::span<const float> row(Slot slot, size_t token);

    Program program_;
    std::vector<size_t> begins_;  // first step of each part
    std::unique_ptr<Backend> backend_;
    std::unique_ptr<HiddenOfExperts> hidden_;  // null without experts
    int32_t context_;
    bool with_output_;
    ActivationSink sink_;
    size_t tokens_ = 0;  // in the current text
};

}  // namespace runnel::kernels
