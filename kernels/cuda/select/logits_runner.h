// Runs the Logits step of a plan: rows of logits, or the largest ones of each, from the last activations to
// the host's memory. Logits are made for kLinearTokens rows at a time and stay on the device: what goes to
// the host is written there by the kernel that selects, or copied as it is.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/linear/linear_launch.h"
#include "kernels/cuda/runtime/launcher.h"
#include "kernels/cuda/select/select.h"
#include "kernels/cuda/upload/weights.h"

namespace runnel::kernels::cuda {

class LogitsRunner {
  public:
    LogitsRunner() = default;
    // For batches of up to `max_tokens` tokens; loads the kernels.
    LogitsRunner(const Program &program, const Logits &step, int32_t max_tokens,
                 const DeviceProperties &properties);

    // Bytes that the constructor will take.
    static size_t bytes(const Program &program, const Logits &step);

    // What the step works on.
    struct Operands {
        const float *in;  // [tokens][stride]
        int64_t stride;
        const int32_t *rows;  // of the tokens whose logits are wanted
        Activations quantized;
    };

    // The logits of rows [first, first + count), count <= kLinearTokens.
    void enqueue(Launcher &launcher, const DeviceWeights &weights, const Operands &operands, int32_t first,
                 int32_t count);
    // Their `largest` largest ones, to the host: candidates() has them when the stream was waited for, and if
    // there is more than one summaries() has what each row sums up to.
    void enqueue_candidates(Launcher &launcher, int32_t first, int32_t count, int32_t largest);
    const Candidate *candidates() const { return host_candidates_.as<const Candidate>(); }
    const RowSummary *summaries() const { return host_summaries_.as<const RowSummary>(); }
    // The first `count` rows that were enqueued last. Waits for the stream.
    void fetch(Stream &stream, std::span<float> logits, int32_t count);

  private:
    int32_t chunks() const { return (vocab_ + kSelectChunk - 1) / kSelectChunk; }

    Logits step_{};
    const Weight *weight_ = nullptr;
    int32_t vocab_ = 0, argmax_blocks_ = 1;
    DeviceMemory kept_, logits_;    // [kLinearTokens] rows: of the input, of logits
    DeviceMemory keys_, partial_;   // of candidates
    DeviceMemory best_, counters_;  // of argmax; zero between launches
    PinnedMemory host_logits_, host_candidates_, host_summaries_;
};

}  // namespace runnel::kernels::cuda
