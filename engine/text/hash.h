// Hashes for the tokenizer's tables, fast for keys of a few bytes.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

#include "gguf/base/hash.h"

namespace runnel::text {

template <class Word>
uint64_t load_word(const char *bytes) {
    Word word;
    std::memcpy(&word, bytes, sizeof word);
    return word;
}

// The construction of wyhash (Wang Yi): up to 16 bytes in two overlapping loads and two multiplications.
inline uint64_t hash_bytes(std::string_view bytes) {
    constexpr uint64_t k1 = 0xa0761d6478bd642f, k2 = 0xe7037ed1a0b428db;
    const char *p = bytes.data();
    size_t n = bytes.size();
    uint64_t state = k1 ^ n;
    for (; n > 16; n -= 16, p += 16)
        state = base::fold(load_word<uint64_t>(p) ^ k2, load_word<uint64_t>(p + 8) ^ state);
    uint64_t a = 0, b = 0;
    if (n >= 8) {
        a = load_word<uint64_t>(p);
        b = load_word<uint64_t>(p + n - 8);
    } else if (n >= 4) {
        a = load_word<uint32_t>(p);
        b = load_word<uint32_t>(p + n - 4);
    } else if (n > 0) {
        a = load_word<uint8_t>(p) << 16 | load_word<uint8_t>(p + n / 2) << 8 | load_word<uint8_t>(p + n - 1);
    }
    return base::fold(base::fold(a ^ k2, b ^ state), k1);
}

inline uint64_t hash_pair(uint32_t a, uint32_t b) {
    return base::fold((static_cast<uint64_t>(a) << 32 | b) ^ 0xa0761d6478bd642f, 0xe7037ed1a0b428db);
}

// The longest run of occupied slots that a lookup may probe. Random keys at half load stay below 50; a file
// crafted to collide is rejected instead of taking quadratic time to load.
inline constexpr int kMaxProbes = 512;

}  // namespace runnel::text
