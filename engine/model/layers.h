// Which layer a step of a program belongs to.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/program.h"

namespace runnel::model {

// Layers by their number; of `count` layers.
struct Layers {
    int32_t count = 0;
    // For every step: -1 in front of the first layer (the embedding), `count` behind the last one (the
    // output). A layer is in the names of weights ("blk.7."); a step without any belongs to the layer of the
    // step before it.
    std::vector<int32_t> of_step;
};

Layers layers_of(const kernels::Program &program);

}  // namespace runnel::model
