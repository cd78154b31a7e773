// Runs the steps that look up rows of tables: Embed and HashedEmbed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/vector.h"
#include "kernels/program.h"

namespace runnel::kernels::cpu {

class EmbedRunner {
  public:
    struct Surroundings {  // all outlive the runner
        const Program *program;
        const LinearKernels *linear;
        const VectorKernels *vector;
        Pool *pool;
        std::span<const LazyBuffer> slots;
        std::span<const LazyBuffer> scratch;  // the largest scratch_bytes() of the program, per thread
    };
    EmbedRunner() = default;
    explicit EmbedRunner(const Surroundings &surroundings) : s_(surroundings) {}

    // Bytes of scratch that a step needs per thread.
    static size_t scratch_bytes(const Program &program, const Embed &step);

    // One thread's share of a step on the first `rows` tokens.
    void run(const Embed &step, const Batch &batch, int32_t rows, int thread) noexcept;
    void run(const HashedEmbed &step, int32_t rows, int thread) noexcept;

  private:
    void look_up(const Weight &table, size_t row, float *out) const noexcept {
        s_.linear->dequantize(table.type, table.data + row * gguf::row_bytes(table.type, table.cols),
                              table.cols, out);
    }
    const Weight &weight(WeightId id) const { return s_.program->weights[static_cast<size_t>(id)]; }
    float *row(Slot slot, int64_t token) const {
        const auto id = static_cast<size_t>(slot);
        return s_.slots[id].as<float>() + token * s_.program->slots[id].width;
    }

    Surroundings s_{};
};

}  // namespace runnel::kernels::cpu
