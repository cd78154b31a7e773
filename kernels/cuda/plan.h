// The plan of a Program on a CUDA device: its steps regrouped into operations of one or two kernels each.
//
// Fused steps: RMS norm with the quantization of its result; matrices of one type with the same input, in one
// launch; bias, scale and residual with the matrix; a gate with its two matrices; norms of heads, RoPE and
// the append of K and V with attention; adjacent copies; a router with the experts that it chooses; a PrepareOp with the
// operation before it, if that writes its input, or with the matrices that read its result. An input of several matrices is
// quantized once, except by the latter.
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

// slot = norm(in), if there is a weight; then quantizes slot into one of two buffers of activations, which
// alternate: while one is written, the kernel that writes it may still read the other.
struct PrepareOp {
    Slot in, slot;
    WeightId norm = kNoWeight;
    float eps = 0;
    int buffer = 0;
    // The formats of all matrices that read `slot`, if nothing else does: their launches can prepare it themselves. Else none.
    std::vector<TileFormat> readers = {};
    // The router of a mixture reads `slot` first: for one token, its launch can prepare it for all.
    bool routes = false;
};

// Up to kLinearMatrices matrices of one format with the same input. With a gate there are two.
struct LinearOp {
    Slot in;
    TileFormat format;
    std::vector<Linear::Part> parts;
    LinearGate gate = LinearGate::None;
    int buffer = 0;                               // of the quantized input
    std::optional<PrepareOp> prepare = {};        // prepares the only output, by the same kernel if possible
    std::optional<PrepareOp> prepare_input = {};  // what prepares `in`, if that has PrepareOp::readers

    // The slot of the only output, if there is one.
    Slot output() const { return parts.size() == 1 || gate != LinearGate::None ? parts[0].out : kNoSlot; }
};

struct AttentionOp {
    Attention step;
    std::optional<PrepareOp> prepare = {};  // as LinearOp::prepare
};

// Up to kCopies independent copies: none reads what another one writes.
struct CopyOp {
    std::vector<Copy> copies;
};

struct ActivateOp {
    Activation step;
    ActivationKind activation;
};

// A mixture of experts, or one of its two steps; see expert_runner.h. The matrices of a launch share their format.
struct ExpertsOp {
    struct Part {
        WeightId weight, bias;
        int64_t rows;
        int64_t at;  // offset of its outputs in a row of [gate, up]
    };
    struct In {
        TileFormat format;
        std::vector<Part> parts;  // gate, up or both, or one part that holds both
        bool of_up = false;       // the rows' factors are those of up (GroupRowsParams::row_weights)
    };
    Experts step;
    std::vector<In> in;  // none: the step reads h
    TileFormat down;
    int buffer;  // of the quantized input
    int32_t experts;
    int64_t in_width, width, out_width;  // of the input, of an expert, of the output; 0: not there
    bool gated;                          // there is an `up` to multiply the activation with
    bool scaled;                         // gate or up has scales: they are separate launches
    bool fused;                          // the launch of gate and up also applies the activation
    ActivationKind activation;
    // The matrix that makes the logits, if the launch that chooses the experts can compute it.
    std::optional<LinearOp> router = {};
    // Prepares the output, by the launch of the sum if there are few tokens.
    std::optional<PrepareOp> prepare = {};
    // What prepares the input, if it has PrepareOp::routes; then there is a router.
    std::optional<PrepareOp> prepare_input = {};
    int32_t places = 0;  // how many experts device memory holds at a time (expert_places.h); 0: all
    int32_t placed = 0;  // with places: the number of this operation among those that have places
};

using Op = std::variant<Embed, Norm, PrepareOp, LinearOp, HeadLinear, CopyOp, Rotate, Mix, StreamWeights,
                        Lerp, Rope, AttentionOp, JoinAttention, Indexer, ActivateOp, ExpertsOp, ShortConv,
                        SoftPool, ScanGate, LinearScan, SelectiveScan>;

// The form in which a weight is uploaded.
enum class WeightUse { None, Tiles, Floats };

struct Plan {
    std::vector<Op> ops;
    std::vector<size_t> part_ends;  // in ops, of the program's parts
    std::optional<Logits> logits;   // the last step
    std::vector<WeightUse> uses;    // of Program::weights
    std::vector<int32_t> places;    // of Program::weights: ExpertsOp::places
    int64_t widest = 0;             // columns of the widest quantized input
    ActivationForms forms;          // all forms that some matrix needs
    ActivationForms
        prepared;  // those of a PrepareOp: without the logits, whose rows have a launch of their own

    // The forms of a row of `cols` values. Formats that need integers always have multiples of 32.
    ActivationForms forms_at(int64_t cols) const { return {forms.integers && cols % 32 == 0, forms.halves}; }
};

// The number of LinearParams::arrivals counters that the plan's launches need.
inline int64_t arrival_counters(const Plan &plan) {
    return std::max<int64_t>(1, col_blocks(plan.widest));
}

// Throws BackendError{Failed}, naming the step or shape that has no kernel.
Plan plan(const Program &program);

}  // namespace runnel::kernels::cuda
