// Weights for kernel tests: random bytes in every block format, with finite scales of normal size.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "gguf/block.h"

namespace runnel::tests {

inline const gguf::Type kLinearTypes[] = {
    gguf::Type::F32,   gguf::Type::F16,     gguf::Type::BF16,   gguf::Type::Q4_0,   gguf::Type::Q4_1,
    gguf::Type::Q5_0,  gguf::Type::Q5_1,    gguf::Type::Q8_0,   gguf::Type::Q2_K,   gguf::Type::Q3_K,
    gguf::Type::Q4_K,  gguf::Type::Q5_K,    gguf::Type::Q6_K,   gguf::Type::IQ4_NL, gguf::Type::IQ4_XS,
    gguf::Type::MXFP4, gguf::Type::NVFP4,   gguf::Type::TQ1_0,  gguf::Type::TQ2_0,  gguf::Type::IQ1_S,
    gguf::Type::IQ1_M, gguf::Type::IQ2_XXS, gguf::Type::IQ2_XS, gguf::Type::IQ2_S,  gguf::Type::IQ3_XXS,
    gguf::Type::IQ3_S, gguf::Type::Q1_0,    gguf::Type::Q2_0,   gguf::Type::PQ2_0,  gguf::Type::PTQ1_0,
};

enum class Fill {
    Random,
    Ones,    // every bit of the weights and of the integer scales set
    Zeros,   // none of these bits set
    Lowest,  // likewise, but int8 scales (Q6_K) are -128
};

// Offsets of the f16 scales in a block; -1 if there is none.
struct ScaleOffsets {
    int first, second;
};

inline ScaleOffsets scale_offsets(gguf::Type type) {
    using gguf::Type;
    switch (type) {
        case Type::Q1_0:
        case Type::Q2_0:
        case Type::PQ2_0:
        case Type::Q4_0:
        case Type::Q5_0:
        case Type::Q8_0:
        case Type::IQ4_NL:
        case Type::IQ4_XS:
        case Type::IQ1_S:
        case Type::IQ2_XXS:
        case Type::IQ2_XS:
        case Type::IQ2_S:
        case Type::IQ3_XXS:
        case Type::IQ3_S:
            return {0, -1};
        case Type::Q4_1:
        case Type::Q5_1:
        case Type::Q4_K:
        case Type::Q5_K:
            return {0, 2};
        case Type::Q2_K:
            return {80, 82};
        case Type::Q3_K:
            return {108, -1};
        case Type::Q6_K:
            return {208, -1};
        case Type::TQ1_0:
            return {52, -1};
        case Type::PTQ1_0:
            return {26, -1};
        case Type::TQ2_0:
            return {64, -1};
        default:
            return {-1, -1};
    }
}

// A normal f16 of magnitude 2^-12 ... 2, either sign; also a subnormal or zero now and then.
inline uint16_t random_scale(std::mt19937 &random) {
    const uint32_t r = static_cast<uint32_t>(random());
    const uint32_t exponent = r % 64 == 0 ? 0 : 3 + r / 64 % 13;
    return static_cast<uint16_t>((r >> 31) << 15 | exponent << 10 | (r >> 20 & 1023));
}

// IQ1_M: d is spread over the top nibbles of four words.
inline void put_iq1_m_scale(std::byte *block, uint16_t scale) {
    for (int k = 0; k < 4; ++k) {
        std::byte &top = block[48 + 2 * k + 1];
        top = (top & std::byte{15}) | static_cast<std::byte>((scale >> (4 * k) & 15) << 4);
    }
}

// rows * cols weights. F32, F16 and BF16 get values of magnitude up to 2.
inline std::vector<std::byte> random_weights(gguf::Type type, int64_t rows, int64_t cols,
                                             std::mt19937 &random, Fill fill = Fill::Random) {
    const gguf::TypeTraits &traits = gguf::traits(type);
    std::vector<std::byte> bytes(gguf::row_bytes(type, cols) * static_cast<size_t>(rows));
    if (!traits.quantized) {
        std::uniform_real_distribution<float> value(-2, 2);
        for (size_t i = 0; i < bytes.size(); i += traits.block_bytes) {
            const uint32_t bits = std::bit_cast<uint32_t>(value(random));
            const uint16_t half =
                type == gguf::Type::F16 ? random_scale(random) : static_cast<uint16_t>(bits >> 16);
            for (size_t j = 0; j < traits.block_bytes; ++j)
                bytes[i + j] = static_cast<std::byte>((traits.block_bytes == 4 ? bits : half) >> (8 * j));
        }
        return bytes;
    }
    for (std::byte &b : bytes)
        b = fill == Fill::Random ? static_cast<std::byte>(random())
                                 : static_cast<std::byte>(fill == Fill::Ones ? 255 : 0);
    if (fill == Fill::Lowest && type == gguf::Type::Q6_K)
        for (size_t i = 0; i < bytes.size(); i += traits.block_bytes)
            std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(i + offsetof(gguf::BlockQ6_K, scales)),
                        16, std::byte{0x80});
    const ScaleOffsets offsets = scale_offsets(type);
    for (size_t i = 0; i < bytes.size(); i += traits.block_bytes) {
        if (type == gguf::Type::MXFP4)
            bytes[i] = static_cast<std::byte>(random() % 64 == 0 ? random() % 3 : 118 + random() % 14);
        if (type == gguf::Type::IQ1_M) put_iq1_m_scale(bytes.data() + i, random_scale(random));
        for (int offset : {offsets.first, offsets.second}) {
            if (offset < 0) continue;
            const uint16_t scale = random_scale(random);
            bytes[i + static_cast<size_t>(offset)] = static_cast<std::byte>(scale & 255);
            bytes[i + static_cast<size_t>(offset) + 1] = static_cast<std::byte>(scale >> 8);
        }
    }
    return bytes;
}

}  // namespace runnel::tests
