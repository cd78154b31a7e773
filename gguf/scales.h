// The packed 6-bit scales of Q3_K, Q4_K and Q5_K blocks. Internal to gguf/.
#pragma once

#include <cstdint>

namespace runnel::gguf {

// Q4_K, Q5_K: eight scales and eight minimums, 0..63 each, in 12 bytes. Bytes 0-3 hold scales 0-3 and bytes
// 4-7 minimums 0-3 in their low 6 bits; bytes 8-11 hold the low nibbles of scales (low) and minimums (high)
// 4-7, whose upper two bits are on top of bytes 0-3 and 4-7.
struct ScalesAndMins {
    uint8_t scales[8], mins[8];
};

constexpr ScalesAndMins unpack_scales_mins(const uint8_t (&packed)[12]) {
    ScalesAndMins out{};
    for (int i = 0; i < 4; ++i) {
        out.scales[i] = packed[i] & 63;
        out.mins[i] = packed[i + 4] & 63;
        out.scales[i + 4] = static_cast<uint8_t>((packed[i + 8] & 15) | packed[i] >> 6 << 4);
        out.mins[i + 4] = static_cast<uint8_t>(packed[i + 8] >> 4 | packed[i + 4] >> 6 << 4);
    }
    return out;
}

constexpr void pack_scales_mins(const ScalesAndMins &in, uint8_t (&packed)[12]) {
    for (int i = 0; i < 4; ++i) {
        packed[i] = static_cast<uint8_t>(in.scales[i] | in.scales[i + 4] >> 4 << 6);
        packed[i + 4] = static_cast<uint8_t>(in.mins[i] | in.mins[i + 4] >> 4 << 6);
        packed[i + 8] = static_cast<uint8_t>((in.scales[i + 4] & 15) | (in.mins[i + 4] & 15) << 4);
    }
}

// Q3_K: sixteen scales, 0..63 (the value is scale - 32), in 12 bytes. Low nibbles: scales 0-7 in the low and
// 8-15 in the high nibbles of bytes 0-7; upper two bits: of scale i in bits 2 * (i / 4) of byte 8 + i % 4.
constexpr uint8_t q3_scale(const uint8_t (&packed)[12], int i) {
    const int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
    const int high = packed[8 + i % 4] >> (2 * (i / 4)) & 3;
    return static_cast<uint8_t>(low | high << 4);
}

constexpr void pack_q3_scales(const uint8_t (&scales)[16], uint8_t (&packed)[12]) {
    for (uint8_t &byte : packed) byte = 0;
    for (int i = 0; i < 16; ++i) {
        packed[i % 8] = static_cast<uint8_t>(packed[i % 8] | (scales[i] & 15) << (i < 8 ? 0 : 4));
        packed[8 + i % 4] = static_cast<uint8_t>(packed[8 + i % 4] | scales[i] >> 4 << (2 * (i / 4)));
    }
}

}  // namespace runnel::gguf
