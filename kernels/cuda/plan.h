// How a device runs a Program: its steps regrouped into operations of one or two kernels each.
//
// What is fused: RMS norm with the quantization of its result; matrices of one type that share an input, into
// one launch; bias, scale and residual into the matrix; a gate and its two matrices; norms of heads, RoPE and
// the append of K and V into attention; copies that follow one another; a PrepareOp into the operation before
// it, if that makes what is prepared. An input that several matrices read is quantized once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/tiles.h"
#include "kernels/cuda/steps/elementwise.h"
#include "kernels/program.h"

namespace runnel::kernels::cuda {

// slot = norm(in), if there is a weight; then slot quantized into one of two buffers of activations, which
// take turns: while one is filled, the kernel that fills it may still read the other.
struct PrepareOp {
    Slot in, slot;
    WeightId norm = kNoWeight;
    float eps = 0;
    int buffer = 0;
};

// Matrices of one format with one input, at most kLinearMatrices of them. With a gate there are two.
struct LinearOp {
    Slot in;
    TileFormat format;
    std::vector<Linear::Part> parts;
    LinearGate gate = LinearGate::None;
    int buffer = 0;  // of the quantized input
    std::optional<PrepareOp> prepare =
        {};  // what the only output is wanted for; by the same kernel, where it can

    // The slot of the only output, if there is one.
    Slot output() const { return parts.size() == 1 || gate != LinearGate::None ? parts[0].out : kNoSlot; }
};

struct AttentionOp {
    Attention step;
    std::optional<PrepareOp> prepare = {};  // as above
};

// At most kCopies of them, of which none needs what another one writes.
struct CopyOp {
    std::vector<Copy> copies;
};

struct ActivateOp {
    Gate step;
    Activation activation;
};

// A mixture of experts; see expert_runner.h. The matrices of a launch share their format.
struct ExpertsOp {
    struct Part {
        WeightId weight, bias;
        int64_t rows;
        int64_t at;  // where its outputs go in a row of [gate, up]
    };
    struct In {
        TileFormat format;
        std::vector<Part> parts;  // gate, up or both; one that holds both
    };
    Experts step;
    std::vector<In> in;
    TileFormat down;
    int buffer;  // of the quantized input
    int32_t experts;
    int64_t in_width, width, out_width;  // of the input, of an expert, of the output
    bool gated;                          // there are values to multiply the activation with
    bool fused;                          // the launch of gate and up activates, too
    Activation activation;
};

using Op =
    std::variant<Embed, Norm, PrepareOp, LinearOp, HeadLinear, CopyOp, AttentionOp, ActivateOp, ExpertsOp>;

// What a weight is uploaded as.
enum class WeightUse { None, Tiles, Floats };

struct Plan {
    std::vector<Op> ops;
    std::vector<size_t> part_ends;  // in ops, of the program's parts
    std::optional<Logits> logits;   // the last step
    std::vector<WeightUse> uses;    // of Program::weights
    int64_t widest = 0;             // columns of any quantized input,
    ActivationForms forms;          // and the forms that some of their readers want

    // The forms of a row of `cols` values. Formats that want integers have only multiples of 32.
    ActivationForms forms_at(int64_t cols) const { return {forms.integers && cols % 32 == 0, forms.halves}; }
};

// LinearParams::arrivals that its launches need.
inline int64_t arrival_counters(const Plan &plan) {
    return std::max<int64_t>(1, col_blocks(plan.widest));
}

// Throws BackendError{Failed} with the step, or shape, that there is no kernel for.
Plan plan(const Program &program);

}  // namespace runnel::kernels::cuda
