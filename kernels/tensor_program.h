// Cuts a program by rows for several devices that run it side by side ("tensor split").
//
// Every rank computes its own output rows of each matrix, and the activations are gathered before a step that needs whole
// rows of them. Nothing is added across ranks, so the results have the bits of one device, for any number of ranks and any
// shares. What is cut:
//   Linear, Logits   by rows; outputs for attention by heads, others in units of 16 rows; or a Linear by columns, see below
//   Attention        by K/V heads with their query heads and their part of the cache (row_cut.h); or not at all, if its
//                    cache layer is divided: each rank has some ranges of kRangeCells cells, and the device itself exchanges
//                    what it needs with the others (Backend::connect)
//   HeadLinear, Copy, Norm of heads, Rope and JoinAttention: by heads, where their slots are cut like that
//   Activation       as its inputs are
//   Experts          every expert's matrices by rows: first gate and up, then, from the gathered h, down (expert_halves.h);
//                    the router and the choice of experts are on every rank. A width that is not whole units leaves the
//                    step whole, an output of fewer than 16 values per rank leaves down whole
//   Embed            rank 0 looks the rows up
// The other steps (norms of whole rows, Rotate, Mix, Lerp, recurrent steps) run on every rank with all of their weights and states.
// A row of a matrix is never cut, so a slice of a weight is a range of its bytes, whatever its format, or, of several
// matrices, one such range in each of them (Weight::stride).
//
// With MatrixCut::Columns, a matrix whose input is cut between its ranges of columns (column_cut.h) is cut by columns: each rank
// multiplies its part of the input by its columns, for all rows, and the sums of all ranges are gathered and added everywhere,
// in the order in which one GPU adds them. Of the four gathers of a layer, those of attention's output and of the hidden values
// are not needed then; the others have up to eight values per value of the output: more bytes move, in fewer exchanges. Only
// GPUs add in ranges.
//
// Ranks run in stages. Before a stage, slots are gathered; a cut slot has a narrow slot of its own on each rank, next to
// the whole one. (Gathers are between parts, not steps: any Backend can then be a rank.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/program.h"
#include "kernels/row_cut.h"

namespace runnel::kernels {

// Joins the ranks' pieces of a slot into the whole slot, on every rank.
struct Gather {
    Slot from, to;  // the same slot if a rank that has any of it has all of it
    Cut pieces;     // by rank: the values of `to` that it sends; disjoint
    // By rank: the index in `from` of the first value that it sends.
    std::vector<int64_t> first;
    // The slots consist of so many equal slices: a piece [begin, end) is [begin / slices, end / slices) of each. (Of h of
    // the chosen experts, a rank has some rows of each expert.)
    int32_t slices = 1;
};

enum class MatrixCut { Rows, Columns };

struct TensorProgram {
    struct Stage {
        std::vector<Gather> gathers;
        std::vector<int32_t> parts;  // by rank: the part of its program that it runs; -1: none
    };
    std::vector<Program> programs;  // by rank
    std::vector<Stage> stages;
    std::vector<size_t> part_ends;  // for each part of the whole program: the number of stages up to its end
    std::vector<Program::Part>
        outer_parts;            // the parts of the whole program: their slots cross its border on rank 0
    Cut vocabulary;             // the logits that each rank computes; empty: the program has none
    std::vector<Cut> kv_heads;  // by cache layer; of a divided one, all of them on each rank
    size_t by_columns = 0;      // matrices that are cut by columns
};

// shares: of the work, by rank; not negative, some of them positive. cache_shares: CacheConfig::shares, of groups that
// divided_groups() (divided_groups.h) divides. Slots that cross the border of the whole program (Program::Part) do so on rank 0.
TensorProgram cut_program(const Program &program, std::span<const double> shares,
                          std::span<const int32_t> cache_shares = {}, MatrixCut matrices = MatrixCut::Rows);

// Bytes that all ranks together receive from others for one token, without logits and what divided attention exchanges.
size_t gathered_bytes_per_token(const TensorProgram &tensor);

}  // namespace runnel::kernels
