// Which layer a step of a program belongs to.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/program.h"

namespace runnel::model {

struct Layers {
    int32_t count = 0;
    // The layer number of every step: -1 before the first layer (the embedding), `count`
    // after the last (the output).
    std::vector<int32_t> of_step;
};

Layers layers_of(const kernels::Program &program);

}  // namespace runnel::model
