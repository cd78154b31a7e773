// Damages files for fuzz tests, as bit rot, bugs of other programs and attackers do.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <vector>

#include "tests/support/random.h"

namespace runnel::testing {

template <class T>
void overwrite(std::vector<std::byte> &bytes, Random &random, T value) {
    if (bytes.size() < sizeof value) return;
    const size_t at = random.below(bytes.size() - sizeof value + 1);
    std::memcpy(bytes.data() + at, &value, sizeof value);
}

// Numbers at which counts, lengths and offsets go wrong.
inline uint64_t awkward(Random &random, size_t size) {
    const uint64_t values[] = {0,
                               1,
                               2,
                               7,
                               8,
                               size - 1,
                               size,
                               size + 1,
                               0x7fffffff,
                               0x80000000,
                               1u << 20,
                               0xffffffff,
                               1ull << 32,
                               1ull << 61,
                               1ull << 62,
                               INT64_MAX,
                               1ull << 63,
                               UINT64_MAX,
                               UINT64_MAX - 31,
                               random.bits() >> 40,
                               random.bits()};
    return values[random.below(std::size(values))];
}

// Damages the bytes in one place: bits, bytes, numbers, pieces removed, repeated or moved.
inline void mutate(std::vector<std::byte> &bytes, Random &random) {
    if (bytes.empty()) return;
    const size_t at = random.below(bytes.size()),
                 length = 1 + random.below(std::min<size_t>(40, bytes.size() - at));
    const auto from = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    const auto to = from + static_cast<std::ptrdiff_t>(length);
    switch (random.below(9)) {
        case 0:
            bytes[at] ^= static_cast<std::byte>(1u << random.below(8));
            break;
        case 1:
            bytes[at] = static_cast<std::byte>(random.bits());
            break;
        case 2:
            bytes[at] = random.below(2) != 0 ? std::byte{0xff} : std::byte{0};
            break;
        case 3:
            overwrite(bytes, random, awkward(random, bytes.size()));
            break;
        case 4:
            overwrite(bytes, random, static_cast<uint32_t>(awkward(random, bytes.size())));
            break;
        case 5:
            std::generate(from, to, [&] { return static_cast<std::byte>(random.bits()); });
            break;
        case 6:
            bytes.erase(from, to);
            break;
        case 7: {
            const std::vector<std::byte> piece(from, to);
            bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(random.below(bytes.size())),
                         piece.begin(), piece.end());
            break;
        }
        case 8: {  // a piece of the file over another position
            const std::vector<std::byte> piece(from, to);
            const size_t target = random.below(bytes.size() - length + 1);
            std::copy(piece.begin(), piece.end(), bytes.begin() + static_cast<std::ptrdiff_t>(target));
            break;
        }
    }
}

}  // namespace runnel::testing
