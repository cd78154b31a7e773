// A seed from the system.
#pragma once

#include <cstdint>
#include <random>

namespace runnel::base {

// Differs from call to call. Has 32 bits: short enough for a user to type it again.
inline uint64_t random_seed() {
    std::random_device device;
    return device();
}

}  // namespace runnel::base
