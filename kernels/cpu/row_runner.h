// The steps that move, rotate, add and interpolate rows of slots, without weights to multiply: Copy, Rotate, Mix, StreamWeights,
// Lerp and JoinAttention.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/memory.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/vector.h"
#include "kernels/program.h"

namespace runnel::kernels::cpu {

class RowRunner {
  public:
    struct Surroundings {  // all outlive the runner
        const Program *program;
        const VectorKernels *kernels;
        Pool *pool;
        std::span<const LazyBuffer> slots;
    };
    RowRunner() = default;
    explicit RowRunner(const Surroundings &surroundings) : s_(surroundings) {}

    // One thread's share of a step on the first `rows` tokens.
    void run(const Copy &step, int32_t rows, int thread) noexcept;
    void run(const Rotate &step, int32_t rows, int thread) noexcept;
    void run(const Mix &step, int32_t rows, int thread) noexcept;
    void run(const StreamWeights &step, int32_t rows, int thread) noexcept;
    void run(const Lerp &step, int32_t rows, int thread) noexcept;
    void run(const JoinAttention &step, int32_t rows, int thread) noexcept;

  private:
    // The slices of a token's rows of some slots.
    struct Slices {
        std::array<float *, Mix::kMostSlices> first;
        int64_t count = 0;
    };
    Slices slices(const std::vector<Slot> &slots, int64_t width, int32_t token) const noexcept;
    void add_slices(const Slices &in, const Mix &step, float *out) noexcept;
    void mix_weights(const StreamWeights &step, const float *x, size_t streams, float *out) noexcept;
    // null: kNoWeight
    const float *vector_of(WeightId id) const {
        return id == kNoWeight
                   ? nullptr
                   : reinterpret_cast<const float *>(s_.program->weights[static_cast<size_t>(id)].data);
    }
    int64_t width(Slot slot) const { return s_.program->slots[static_cast<size_t>(slot)].width; }
    float *row(Slot slot, int64_t token) const {
        return s_.slots[static_cast<size_t>(slot)].as<float>() + token * width(slot);
    }

    Surroundings s_{};
};

}  // namespace runnel::kernels::cpu
