// A seed from the system.
#pragma once

#include <cstdint>
#include <random>

namespace runnel::base {

// A new seed at each call, of 32 bits, so that a user can type it again.
inline uint64_t random_seed() {
    std::random_device device;
    return device();
}

}  // namespace runnel::base
