// Which layer a step of a program belongs to.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/program.h"

namespace runnel::model {

struct Layers {
    int32_t count = 0;
    // For every step the number of its layer: -1 in front of the first layer (the embedding), `count` behind
    // the last one (the output).
    std::vector<int32_t> of_step;
};

Layers layers_of(const kernels::Program &program);

}  // namespace runnel::model
