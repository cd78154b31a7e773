// Splits a program into partitions for several devices, which run one after the other.
//
// Any step may run on any device; consecutive steps of one device form a part of its partition. A slot
// that is written on one device and read on another is copied between the two parts, once per part however
// often it is read. K and V of a layer stay on the device that runs its attention; attention that reads the
// cells of another layer runs on that layer's device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "kernels/program.h"

namespace runnel::kernels {

struct SplitProgram {
    struct Stage {
        size_t device;  // index into programs
        int32_t part;   // of the device's program
        std::vector<size_t>
            from;  // for each of the part's `in`: the device that wrote it; `device`: none did
    };
    std::vector<Program> programs;  // one per device; without steps if the device is not used
    std::vector<Stage> stages;
    std::vector<size_t> part_ends;  // for each part of the whole program: the number of stages up to its end
    // The slots `in` and `out` of those parts, and the device that reads or writes each.
    std::map<Slot, size_t> outside;
};

// device[i] is the device of program.steps[i], below `devices`. The program may have parts of its own; each is then a
// number of stages. A slot `in` of a part is read by one device.
SplitProgram split_program(const Program &program, std::span<const uint8_t> device, size_t devices);

}  // namespace runnel::kernels
