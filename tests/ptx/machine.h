// Runs a grid of an entry. Warps run in lock step. After divergence the lanes at the lowest step run first, so
// structured code reconverges; a collective waits for all lanes of the warp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tests/ptx/memory.h"
#include "tests/ptx/program.h"

namespace runnel::ptx {

struct Grid {
    uint32_t blocks = 1;
    int threads = 32;   // per block, a multiple of 32
    size_t shared = 0;  // bytes of dynamic shared memory
    std::span<const std::byte> parameters;
    // A programmatic dependent launch: before griddepcontrol.wait only constant memory may be read.
    bool dependent = false;
};

// Choices that a device is free to make. Results must not depend on them.
struct Schedule {
    uint64_t seed = 1;           // for the order of blocks and warps, and the number of steps before a switch
    int resident_blocks = 1;     // number of blocks that run interleaved
    bool late_copies = true;     // cp.async arrives at its wait; false: at once
    bool highest_first = false;  // diverged lanes at the highest step run first
};

// Returns the number of warp steps. Throws Error with file, line, block and thread. All bytes of shared memory
// are initialized to 0xff.
uint64_t run(const Program &program, const Grid &grid, GlobalMemory &memory, const Schedule &schedule = {});

}  // namespace runnel::ptx
