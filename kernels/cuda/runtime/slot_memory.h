// The location of a program's slot in device memory.
#pragma once

#include <cstdint>

namespace runnel::kernels::cuda {

// [tokens][stride]
struct SlotMemory {
    float *data;
    int64_t stride;
};

}  // namespace runnel::kernels::cuda
