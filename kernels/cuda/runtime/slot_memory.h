// Where a slot of a program lies on the device.
#pragma once

#include <cstdint>

namespace runnel::kernels::cuda {

// [tokens][stride]
struct SlotMemory {
    float *data;
    int64_t stride;
};

}  // namespace runnel::kernels::cuda
