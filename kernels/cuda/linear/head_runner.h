// Runs the HeadLinear steps of a plan: each slice of a row is multiplied by its own matrix.
//
// The matrix kernels treat heads as experts with a fixed choice (LinearParams::heads): the bits are those
// of a Linear with the head's matrix and slice, for any number of tokens. The slices are quantized first,
// each separately. For F32 weights they are read in place, or copied first if a slice is not 16-byte
// aligned.
//
// Bytes, for `heads` matrices of rows x cols: the weights once for up to 8 tokens (a second time, from L2,
// for 9 to 16) and once per 48 tokens above (F16 and BF16: 128, F32: 64); per token 4 heads * cols read, 4
// heads * rows written, and 2 + 24/32 bytes per value quantized to integers (2 for halves) written and read.
// One token of DeepSeek-V2 (128 heads, 512 x 128 in F16): 16.8 MB of weights, 64 KB in, 256 KB out.
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
    // Allocates memory for batches of `max_tokens` tokens and loads the kernels; nothing if the plan has no heads.
    HeadRunner(const Program &program, const Plan &plan, int32_t max_tokens);

    // Bytes that the constructor will allocate.
    static size_t bytes(const Program &program, const Plan &plan, int32_t max_tokens);

    // in, out: the step's slots. tiles: those of all matrices of the step's weight.
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
