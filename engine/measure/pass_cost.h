// Bytes and operations of a pass through a model, counted from its Program without measuring.
#pragma once

#include <cstdint>

#include "engine/decode/cache_plan.h"
#include "kernels/program.h"

namespace runnel::measure {

// The minimum number of bytes that a pass moves between memory and processor, and the operations that it
// computes. A multiply-add is two operations.
struct PassCost {
    double weights = 0;        // bytes: each matrix once, and the expected number of distinct experts
    double cache_read = 0;     // bytes: each visible cell once per attention step
    double cache_written = 0;  // bytes: the cells of the pass's tokens
    double states = 0;         // bytes of recurrent layers: read once, written once
    double matrix_operations = 0;
    double attention_operations = 0;  // for the scores (also of indexers) and for the weighted sums of values
    double scores = 0;                // query-key pairs, over all heads

    double bytes() const { return weights + cache_read + cache_written + states; }
    double operations() const { return matrix_operations + attention_operations; }
    double intensity() const { return operations() / bytes(); }  // operations per byte
};

// The cells that the token at `position` attends to, its own included, without an indexer.
int64_t visible_cells(const kernels::Attention &attention, int64_t position);

// The cells that at least one of the tokens at `depth` ... `depth + tokens - 1` attends to. tokens > 0.
int64_t cells_in_sight(const kernels::Attention &attention, int64_t depth, int64_t tokens);

// The cost of a pass of `tokens` > 0 tokens of one sequence that has `depth` cells, with `logit_rows` rows of
// logits. All experts are assumed to be chosen equally often.
PassCost pass_cost(const kernels::Program &program, int64_t depth, int64_t tokens,
                   decode::CacheTypes types = {}, int64_t logit_rows = 1);

// The mean cost of `count` > 0 decode passes of one token each, the first at `depth`.
PassCost decode_cost(const kernels::Program &program, int64_t depth, int64_t count,
                     decode::CacheTypes types = {});

}  // namespace runnel::measure
