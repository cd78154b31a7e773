// A program cut into the shares of two devices, which take turns.
//
// Any step may run on either device; consecutive steps of one device form a part of its share. A slot that is
// read on one device after it was written on the other crosses between the two parts, once per part and
// however often it is read. K and V of a layer are kept where its attention runs; attention that reads what
// another one has appended runs where that does.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/program.h"

namespace runnel::kernels {

struct Division {
    struct Turn {
        size_t device;  // 0 or 1
        int32_t part;   // of its program
    };
    std::array<Program, 2> programs;  // without steps: the device has no share
    std::vector<Turn> turns;
};

// device[i]: 0 or 1, where program.steps[i] runs.
Division divide(const Program &program, std::span<const uint8_t> device);

}  // namespace runnel::kernels
