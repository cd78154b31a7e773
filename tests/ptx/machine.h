// Runs a grid of an entry. Warps run in lock step: of the lanes that have diverged, those at the lowest step
// go first, so that structured code meets again by itself; a collective waits until all lanes have come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tests/ptx/memory.h"
#include "tests/ptx/program.h"

namespace runnel::ptx {

struct Grid {
    uint32_t blocks = 1;
    int threads = 32;   // of a block, whole warps
    size_t shared = 0;  // bytes that the launch gives
    std::span<const std::byte> parameters;
    // A programmatic dependent launch: before griddepcontrol.wait only constant memory may be read.
    bool dependent = false;
};

// What a device may do in any way. Results must not depend on it.
struct Schedule {
    uint64_t seed = 1;           // of the order of blocks and warps, and of when the next warp gets its turn
    int resident_blocks = 1;     // that run interleaved
    bool late_copies = true;     // cp.async arrives at its wait, else at once
    bool highest_first = false;  // of diverged lanes
};

// Returns the number of warp steps. Throws Error, with file, line, block and thread. All of shared memory holds
// 0xff before it is written.
uint64_t run(const Program &program, const Grid &grid, GlobalMemory &memory, const Schedule &schedule = {});

}  // namespace runnel::ptx
