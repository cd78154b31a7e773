// Runs the Attention steps of a plan: owns the rotation tables and the work memory of their kernels, and chooses
// the kernels and launches.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/attention_memory.h"
#include "kernels/cuda/attention/divided_attention.h"
#include "kernels/cuda/attention/kv_memory.h"
#include "kernels/cuda/linear/quantize.h"
#include "kernels/cuda/runtime/batch_input.h"
#include "kernels/cuda/runtime/launcher.h"
#include "kernels/cuda/upload/weights.h"

namespace runnel::kernels::cuda {

class AttentionRunner {
  public:
    AttentionRunner() = default;
    // Allocates memory for batches of `max_tokens` tokens and uploads the rotations. The program outlives it.
    AttentionRunner(Stream &stream, const Program &program, const CacheConfig &cache, int32_t max_tokens);

    // Loads the kernels of a step. Throws if the device cannot run them.
    static void prepare(const Program &program, const Attention &step, const CacheConfig &cache);

    // The launches into which the attention of a batch is divided.
    AttentionLaunches launches(std::span<const SequenceSpan> sequences, int32_t tokens) const;

    struct Operands {
        const DeviceWeights &weights;
        const KvMemory &cache;
        const BatchInput &input;
        std::span<float *const> slots;  // of the program
        int32_t tokens;
        bool shares;                 // some sequence has shared cells
        AttentionLaunches launches;  // launches() of the batch
        const DividedAttention &divided;
        Messages &messages;  // to the ranks that hold the other cells of divided layers
    };
    void enqueue(Launcher &launcher, const Rope &step, const Operands &operands) const;
    // quantize: the quantization of the output, or null. Returns false if the caller must launch it separately.
    bool enqueue(Launcher &launcher, const Attention &step, const QuantizeParams *quantize,
                 const Operands &operands) const;

    // The rotation of a rope of the program; -1: none.
    RopeParams rope_params(int32_t rope) const;

  private:
    void upload_ropes(Stream &stream);
    AttentionParams params(const Launcher &launcher, const Attention &step, const Operands &operands) const;
    static void attend(Launcher &launcher, const Attention &step, AttentionParams params,
                       const Operands &operands);

    const Program *program_ = nullptr;
    DeviceMemory partials_, counters_, totals_, turns_;
    int64_t partial_floats_ = 0;           // of partials_
    std::vector<const uint64_t *> ropes_;  // in turns_
};

}  // namespace runnel::kernels::cuda
