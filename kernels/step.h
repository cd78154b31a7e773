// What the steps of a Program (program.h) have in common: slots, weights, and how a step tells what it uses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "gguf/block.h"

namespace runnel::kernels {

using Slot = int32_t;  // index into Program::slots
inline constexpr Slot kNoSlot = -1;

// A matrix (or a vector: rows == 1); see gguf/block.h for the layouts. Its bytes are in the mapped file, or
// in Program::constants if a family computes them.
struct Weight {
    std::string name;  // of the tensor; used in messages and profiles
    gguf::Type type;
    int64_t rows, cols;
    const std::byte *data;
    int64_t count = 1;  // matrices of this shape, one per expert or head
    size_t stride = 0;  // bytes from one matrix to the next; 0: they are adjacent
    // Bytes from one row to the next, if these are some columns of a wider matrix; 0: they are adjacent.
    size_t row_stride = 0;
    const std::byte *matrix(int64_t index) const {
        return data + (stride > 0 ? stride : matrix_bytes()) * static_cast<size_t>(index);
    }
    size_t matrix_bytes() const { return gguf::row_bytes(type, cols) * static_cast<size_t>(rows); }
    size_t bytes() const { return matrix_bytes() * static_cast<size_t>(count); }
};
using WeightId = int32_t;  // index into Program::weights
inline constexpr WeightId kNoWeight = -1;

// Every step has
//   int32_t layer       the number of the model layer it belongs to, or -1; the steps of a layer are adjacent
//   describe(visitor)   reports to a StepVisitor what the step reads, writes and keeps
//   kMixesTokens        whether a token's output depends on other tokens of its sequence
// Everything else that depends on the kind of step is derived from these (kernels/steps.h).

// How much of a weight a step reads for one token: all of it, or the matrices of some
// experts.
struct Use {
    int32_t experts = 0;      // number of experts read; 0: the whole weight
    WeightId of = kNoWeight;  // with experts: a weight with one matrix per expert
    bool logit_rows = false;  // only for tokens whose logits are requested
};

// A layer of the KV cache that a step reads.
struct CacheUse {
    int32_t cache;       // index into Program::cache_layers
    bool appends;        // false: another step appends the cells
    int32_t window;      // number of cells a token attends to; 0: all
    int32_t sink_cells;  // number of attention-sink cells, the first of the sequence
};

// Receives what a step describes. A visitor derives from this and hides the functions it needs. Slots,
// weights and ropes may be kNoSlot, kNoWeight and -1.
struct StepVisitor {
    void reads(Slot) {}  // also called for a slot that the step writes only in part
    void writes(Slot) {}
    void row(WeightId) {}          // one row of a table, chosen by the token's id or position
    void matrix(WeightId, Use) {}  // a matrix multiplied with the activations of each token
    void vector(WeightId, Use) {}  // an F32 vector
    void rope(int32_t) {}          // index into Program::ropes
    void cache(const CacheUse &) {}
    void state(int32_t) {}  // index into Program::state_layers
};

}  // namespace runnel::kernels
