// Runs the Logits step of a plan: rows of logits, or the top-k of each, from the last activations to host
// memory. Logits are computed kLinearTokens rows at a time and stay on the device; the selecting kernel
// writes its results directly to host memory, and full rows are copied.
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
    // Allocates memory for batches of up to `max_tokens` tokens and loads the kernels.
    LogitsRunner(const Program &program, const Logits &step, int32_t max_tokens,
                 const DeviceProperties &properties);

    // Bytes that the constructor will allocate.
    static size_t bytes(const Program &program, const Logits &step);

    // The inputs of the step.
    struct Operands {
        const float *in;  // [tokens][stride]
        int64_t stride;
        const int32_t *rows;  // the tokens whose logits are requested
        Activations quantized;
        LinearParams::Ahead ahead;
    };

    // The logits of rows [first, first + count), count <= kLinearTokens.
    void enqueue(Launcher &launcher, const DeviceWeights &weights, const Operands &operands, int32_t first,
                 int32_t count);
    // Allocates pinned memory for the masks of a batch's rows. Precondition, if it must grow: the stream is idle.
    void reserve_masks(size_t rows);
    // Copies the masks of a batch's rows (Batch::masks) to pinned memory. Precondition: the stream does not read those of
    // an earlier batch any more; reserve_masks().
    void stage_masks(std::span<const TokenMask> masks);
    // Uploads the staged masks of kLinearTokens rows from `first` (a multiple of kLinearTokens) for the next
    // enqueue_candidates(), in one copy.
    void upload_masks(Stream &stream, int32_t first);
    // Selects the `largest` greatest logits of rows [first, first + count); if `masked`, only of tokens that the
    // uploaded masks allow. After the stream has finished, candidates() has them and, if `largest` is more than 1,
    // sums() has the sum of each row.
    void enqueue_candidates(Launcher &launcher, int32_t first, int32_t count, int32_t largest, bool masked);
    const TopLogit *candidates() const { return host_candidates_.as<const TopLogit>(); }
    const ExpSum *sums() const { return host_sums_.as<const ExpSum>(); }
    // Copies the first `count` rows of the last enqueue(). Waits for the stream.
    void fetch(Stream &stream, std::span<float> logits, int32_t count);

  private:
    int32_t chunks() const { return (vocab_ + kSelectChunk - 1) / kSelectChunk; }
    size_t masks_bytes() const {
        return static_cast<size_t>(kLinearTokens) * (sizeof(int32_t) + mask_bytes());
    }
    size_t mask_bytes() const { return mask_bytes_of(vocab_); }
    static size_t mask_bytes_of(int64_t vocab) {
        return static_cast<size_t>((vocab + 63) / 64) * sizeof(uint64_t);
    }

    Logits step_{};
    const Weight *weight_ = nullptr;
    int32_t vocab_ = 0, argmax_blocks_ = 1;
    DeviceMemory kept_, logits_;    // [kLinearTokens] rows: of the input, of logits
    DeviceMemory keys_, partial_;   // of top-k
    DeviceMemory best_, counters_;  // of argmax; zero between launches
    // RowMasks of kLinearTokens rows: `number` of every row, then the bits of the masks. host_masks_ holds one such
    // array after the other, for all rows of the batch.
    DeviceMemory masks_;
    PinnedMemory host_masks_;
    PinnedMemory host_logits_, host_candidates_, host_sums_;
};

}  // namespace runnel::kernels::cuda
