// UE4M3, the 8-bit float of NVFP4's scales: 4 bits of exponent (bias 7), 3 of mantissa
// and no sign; the eighth bit is ignored. 0x7f, which is NaN in other UE4M3 data, is 0,
// as in ggml.
#pragma once

#include <bit>
#include <cstdint>

#include "gguf/half.h"

namespace runnel::gguf {

// 4 groups of 16 weights: value = ue4m3(d) / 2 * kMXFP4Values[q]. Byte i of a group's 8 bytes stores weight i
// in its low nibble and weight i + 8 in its high nibble.
#pragma pack(push, 1)
struct BlockNVFP4 {
    uint8_t d[4];
    uint8_t qs[32];
};
#pragma pack(pop)
static_assert(sizeof(BlockNVFP4) == 36);

// The value of a UE4M3 number, 2^(e - 7) * (1 + m / 8) for e > 0, 2^-6 * m / 8 for e = 0.
// The eighth bit is ignored. Two special cases, as in ggml: 0x7f is 0, and 0xff is 480.
//
// Exact: the bits are those of a binary16 with a smaller bias.
constexpr float ue4m3_to_f32(uint8_t bits) noexcept {
    if (bits == 0x7f) return 0;
    return f16_to_f32(static_cast<uint16_t>((bits & 0x7f) << 7)) * 256;
}

// Rounds to nearest, halves up, as ggml does. NaN and values that are not positive become 0; 256 and more
// become the largest number, 448.
constexpr uint8_t f32_to_ue4m3(float value) noexcept {
    constexpr uint8_t largest = 0x7e;
    if (!(value > 0)) return 0;
    if (value >= 256) return largest;
    if (value < 0x1p-6f) {  // subnormal
        const int steps = static_cast<int>(value * 512 + 0.5f);
        return static_cast<uint8_t>(steps < 7 ? steps : 7);
    }
    const uint32_t rounded = ((std::bit_cast<uint32_t>(value) + 0x80000u) >> 20) - ((127u - 7u) << 3);
    return rounded < 0x78 ? static_cast<uint8_t>(rounded) : largest;
}

}  // namespace runnel::gguf
