// The two 16-bit float formats, converted in software exactly as IEEE 754 and the x86 instructions do (F16C;
// AVX512-BF16 except that it flushes subnormals): round to nearest even, NaN made quiet with its payload
// truncated, infinities and subnormals kept. Does not depend on the processor's flush-to-zero mode.
#pragma once

#include <bit>
#include <cstdint>

namespace runnel::gguf {

// IEEE binary16: sign, 5 bits of exponent (bias 15), 10 of mantissa.
constexpr float f16_to_f32(uint16_t half) noexcept {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16, magnitude = half & 0x7fffu;
    uint32_t bits = (magnitude << 13) + (112u << 23);  // the exponent's bias grows from 15 to 127
    if (magnitude < 0x400)
        bits = std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
    else if (magnitude >= 0x7c00)
        bits = 0x7f800000u | magnitude << 13 | (magnitude > 0x7c00 ? 0x400000u : 0);
    return std::bit_cast<float>(sign | bits);
}

constexpr uint16_t f32_to_f16(float value) noexcept {
    const auto bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    uint32_t half = 0x7c00;       // from 2^16 on: infinity
    if (magnitude > 0x7f800000u)  // NaN
        half = 0x7e00u | (magnitude >> 13 & 0x3ffu);
    else if (magnitude < 0x38800000u)  // below 2^-14: the ulp of 0.5f is binary16's smallest step
        half =
            std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<uint32_t>(0.5f);
    else if (magnitude < 0x47800000u)  // a carry out of the mantissa increments the exponent
        half = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    return static_cast<uint16_t>(sign | half);
}

// bfloat16: the upper half of a float.
constexpr float bf16_to_f32(uint16_t bf16) noexcept {
    return std::bit_cast<float>(static_cast<uint32_t>(bf16) << 16);
}

constexpr uint16_t f32_to_bf16(float value) noexcept {
    const auto bits = std::bit_cast<uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace runnel::gguf
