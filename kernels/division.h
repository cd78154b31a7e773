// A program cut into the shares of several devices, which take turns.
//
// Any step may run on either device; consecutive steps of one device form a part of its share. A slot that is
// read on one device after it was written on another crosses between the two parts, once per part and however
// often it is read. K and V of a layer are kept where its attention runs; attention that reads what
// another one has appended runs where that does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/program.h"

namespace runnel::kernels {

struct Division {
    struct Turn {
        size_t device;             // index into programs
        int32_t part;              // of its program
        std::vector<size_t> from;  // for each of the part's `in`, the device that has written it
    };
    std::vector<Program> programs;  // by device; without steps: it has no share
    std::vector<Turn> turns;
};

// device[i]: where program.steps[i] runs, below `devices`.
Division divide(const Program &program, std::span<const uint8_t> device, size_t devices);

}  // namespace runnel::kernels
