// Runs the HeadLinear steps of a plan: the pieces of a row, each times a matrix of its own.
//
// To the matrix kernels, heads are experts whose choice is fixed (LinearParams::heads): the same bits as for
// a Linear with the head's matrix and piece, whatever the number of tokens. The pieces are quantized first,
// each by itself; those that F32 weights multiply are read where they lie, and copied together first only
// where one does not begin at 16 bytes.
//
// Bytes against the floor, for `heads` matrices of rows x cols: the weights once for up to 8 tokens (a second
// time, from L2, for 9 to 16) and once per 64 tokens above; 4 heads * cols per token read, 4 heads * rows
// written, and 2 + 24/32 bytes per value quantized to integers (2 to halves) written and read. One token of
// DeepSeek-V2 (128 heads, 512 x 128 in F16): 16.8 MB of weights, 64 KB in, 256 KB out.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/plan.h"
#include "kernels/cuda/runtime/launcher.h"
#include "kernels/cuda/runtime/slot_memory.h"
#include "kernels/cuda/upload/weights.h"

namespace runnel::kernels::cuda {

class HeadRunner {
  public:
    HeadRunner() = default;
    // Room for batches of `max_tokens` tokens; loads the kernels. Nothing if the plan has no heads.
    HeadRunner(const Program &program, const Plan &plan, int32_t max_tokens);

    // Bytes that the constructor will take.
    static size_t bytes(const Program &program, const Plan &plan, int32_t max_tokens);

    // in, out: the step's slots. tiles: of all matrices of `weight`, the step's.
    struct Operands {
        SlotMemory in, out;
        const std::byte *tiles;
        int32_t tokens;
    };
    void enqueue(Launcher &launcher, const HeadLinear &step, const Weight &weight, const Operands &operands);

  private:
    DeviceMemory pieces_;  // [head][token]: quantized, or floats
};

}  // namespace runnel::kernels::cuda
