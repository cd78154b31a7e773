// Random weights in the codebook formats, for which there is no quantizer here.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "gguf/quantize.h"
#include "tests/support/random.h"

namespace runnel::testing {

inline void put_codebook_scale(gguf::Type type, uint16_t d, std::byte *block) {
    if (type != gguf::Type::IQ1_M) {
        block[0] = static_cast<std::byte>(d & 255);
        block[1] = static_cast<std::byte>(d >> 8);
        return;
    }
    for (int i = 0; i < 4; ++i) {  // in the top nibbles of the last four words
        std::byte &top = block[48 + 2 * i + 1];
        top = (top & std::byte{15}) | static_cast<std::byte>((d >> (4 * i) & 15) << 4);
    }
}

inline double root_mean_square(std::span<const float> values) {
    double sum = 0;
    for (const float value : values) sum += double{value} * value;
    return std::sqrt(sum / static_cast<double>(values.size()));
}

// IQ1_S, IQ1_M, IQ2_*, IQ3_*.
inline bool is_codebook_type(gguf::Type type) {
    return gguf::traits(type).supported && gguf::traits(type).quantized && !gguf::can_quantize(type);
}

// Writes blocks of random bits, the same for equal `values`. Each block has the root mean square of its 256
// values. Precondition: is_codebook_type(type), values.size() is a multiple of 256.
inline void random_codebook_row(gguf::Type type, std::span<const float> values, std::byte *blocks) {
    const size_t bytes = gguf::traits(type).block_bytes;
    uint64_t seed = static_cast<uint64_t>(type);
    for (const float value : values.first(8)) seed = seed * 31 + std::bit_cast<uint32_t>(value);
    Random random(seed);
    for (size_t i = 0; i < values.size(); i += 256, blocks += bytes) {
        for (size_t b = 0; b < bytes; ++b) blocks[b] = static_cast<std::byte>(random.bits() >> 56);
        put_codebook_scale(type, 0x3c00, blocks);
        float unit[256];
        gguf::dequantize_row(type, blocks, unit, 256);
        const double d = root_mean_square(values.subspan(i, 256)) / root_mean_square(unit);
        put_codebook_scale(type, gguf::f32_to_f16(static_cast<float>(d)), blocks);
    }
}

}  // namespace runnel::testing
