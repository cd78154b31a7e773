// A building block of hashes and checksums.
#pragma once

#include <cstdint>

namespace runnel::base {

// The XOR of the two halves of the 128-bit product: every bit of both factors affects the result.
inline uint64_t fold(uint64_t a, uint64_t b) {
    __extension__ using Product = unsigned __int128;
    const Product product = static_cast<Product>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace runnel::base
