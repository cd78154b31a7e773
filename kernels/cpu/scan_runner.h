// Runs the recurrent steps: advances each sequence from the state slot that it reads to those that it writes.
//
// A unit of work is a block of channels (or of one head's columns) of one sequence and processes the
// sequence's tokens in order. The distribution of units does not change a bit (scan.h).
#pragma once

#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/scan.h"
#include "kernels/program.h"

namespace runnel::kernels::cpu {

class ScanRunner {
  public:
    // Owned by the backend; everything here outlives the runner.
    struct Surroundings {
        const Program *program;
        const ScanKernels *kernels;
        Pool *pool;
        const StateMemory *states;
        std::span<const LazyBuffer> slots;
    };

    ScanRunner() = default;
    explicit ScanRunner(const Surroundings &surroundings) : s_(surroundings) {}

    // Called by all threads, with a barrier after each.
    void run(const ShortConv &step, const Batch &batch, int thread) noexcept;
    void run(const SoftPool &step, const Batch &batch, int thread) noexcept;
    void run(const ScanGate &step, const Batch &batch, int thread) noexcept;
    void run(const LinearScan &step, const Batch &batch, int thread) noexcept;
    void run(const SelectiveScan &step, const Batch &batch, int thread) noexcept;

  private:
    void conv(const ShortConv &step, const SequenceSpan &sequence, int64_t c0, int64_t c1) const noexcept;
    void pool(const SoftPool &step, const SequenceSpan &sequence, int64_t c0, int64_t c1) const noexcept;
    void linear(const LinearScan &step, const SequenceSpan &sequence, int32_t head,
                int64_t block) const noexcept;
    void selective(const SelectiveScan &step, const SequenceSpan &sequence, int64_t block) const noexcept;

    const float *vector_of(WeightId id) const {
        return id == kNoWeight
                   ? nullptr
                   : reinterpret_cast<const float *>(s_.program->weights[static_cast<size_t>(id)].data);
    }
    int64_t width(Slot slot) const { return s_.program->slots[static_cast<size_t>(slot)].width; }
    float *row(Slot slot, int32_t token) const {
        return s_.slots[static_cast<size_t>(slot)].as<float>() + token * width(slot);
    }

    Surroundings s_{};
};

}  // namespace runnel::kernels::cpu
