// How long the inner loop of a matrix kernel takes when a scheduler runs several warps of it, by what the compiler
// arranged in the machine code: how many clocks lie between two instructions of a warp, and on which of its six
// scoreboards an instruction waits for earlier loads.
//
// An instruction's second word has this in bits 41 to 57: clocks until the warp's next instruction (4 bits), a hint
// (1), the scoreboard that counts it until its result is there and the one until its operands are read (3 bits each,
// 7: none), and a mask of those that must be at zero before it starts (6). (NVIDIA does not document it; it was found
// by experiments: Jia et al., "Dissecting the NVIDIA Volta GPU architecture", 2018. The same bits are in the code for
// sm_80 to sm_120 that nvcc 13.0 makes.)
#pragma once

#include <cstddef>

#include "tests/gpu/cubin.h"

namespace runnel::tests::model {

// Clocks after which a load has its result.
struct LoadClocks {
    int memory;            // of weights, which bypass L1
    int l1 = 36;           // of what is in L1
    bool in_order = true;  // whether a hit in L1 also waits for all weights that were requested before it
};

// Clocks that `warps` warps, side by side on one scheduler, take for one pass of instructions [begin, end) each, in the long
// run: it issues one instruction per clock, from its warps in turn. Nothing limits how many bytes come per clock. Branches inside
// are not taken, and units that the schedulers of a multiprocessor share count as a scheduler's own.
double loop_clocks(const MachineCode &code, size_t begin, size_t end, int warps, const LoadClocks &loads);

}  // namespace runnel::tests::model
