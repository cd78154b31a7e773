// Quantized weights as int8, for launches of up to eight tokens (multiplies_bytes()): operand A of mma_s8_k32 is a word of
// four codes as it comes out of its plane (tiles.h), where binary16 (fragments.h) takes two conversions per word. Activations
// have 12 bits, two digits of int8 (activations.h), each of which is a column of a product: four tokens have 8 columns, and
// their 32 values are multiplied by one instruction in place of two. With more tokens the digits would cost more than the
// conversions.
//
// The results are those of binary16: the sum of a group is exact either way.
#pragma once

#include "kernels/cuda/linear/activations.h"
#include "kernels/cuda/linear/block_scales.h"
#include "kernels/cuda/linear/fragments.h"
#include "kernels/cuda/linear/linear.h"

namespace runnel::kernels::cuda {

// The bytes of weight_bytes() are the weights' integers times 2^byte_shift(): codes with an offset of half their range become
// two's complement by turning their highest bit, if that is the highest bit of the byte; and the upper nibbles of Q4_K stay where
// they are, as uint8.
constexpr int byte_shift(TileFormat f, int sub) {
    switch (f) {
        case TileFormat::Q4_0:
            return 4;
        case TileFormat::Q5_0:
            return 3;
        case TileFormat::Q6_K:
            return 2;
        case TileFormat::Q3_K:
            return 5;
        case TileFormat::Q4_K:
            return sub == 0 ? 0 : 4;
        default:
            return 0;
    }
}

// In these formats such sums would overflow. Those of each chunk (Q6_K), or of the upper nibbles of two chunks (Q4_K), are
// added up by themselves and shifted right before they are added to the block's.
constexpr bool shifts_back(TileFormat f, int sub) {
    return f == TileFormat::Q6_K || (f == TileFormat::Q4_K && sub == 1);
}
constexpr bool shifts_back_after_chunk(TileFormat f, int chunk) {
    return shifts_back(f, 1) && (f == TileFormat::Q6_K || chunk % 2 == 1);
}
// Other formats keep the factor in the block's sum; the activations' scale is divided by it.
constexpr int sum_unit(TileFormat f) {
    return shifts_back(f, 1) ? 1 : 1 << byte_shift(f, 0);
}

// The bytes of chunk kC, sub kS (tiles.h: registers), of 16 weights. later: as in fragment().
template <TileFormat F, int kC, int kS>
DEVICE void weight_bytes(const MainRegisters<F> &m, const SideRegisters<F> &side, const Book<F> &book,
                         uint32_t (&to)[4], uint32_t (&later)[4]) {
    constexpr uint32_t kTop = 0x80808080u;
    if constexpr (has_codebook(F)) {
        to[0] = codebook_register<F, kC, kS, 0, true>(m, side, book);
        to[1] = codebook_register<F, kC, kS, 1, true>(m, side, book);
        to[2] = codebook_register<F, kC, kS, 2, true>(m, side, book);
        to[3] = codebook_register<F, kC, kS, 3, true>(m, side, book);
        if constexpr (has_quads(F)) {
            // Bit 4 kS + i of each byte of `signs` is the sign of a magnitude, none of which is 0: no carry leaves a byte.
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint32_t negative = prmt_signs(side.signs[kC] << (7 - 4 * kS - i), 0, 0xba98u);
                to[i] = (to[i] ^ negative) + (negative & 0x01010101u);
            }
        }
    } else if constexpr (F == TileFormat::Q8_0) {
#pragma unroll
        for (int i = 0; i < 4; ++i) to[i] = m.main[8 * kC + 4 * kS + i];
    } else if constexpr (has_table(F)) {
        if constexpr (kS == 0) {
            look_up_chunk<F, kC, true>(m, to, later);
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) to[i] = later[i];
        }
    } else if constexpr (F == TileFormat::Q4_0) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            to[i] = and_xor(move_bits<4 * kS, 4>(m.main[4 * kC + i]), 0xf0f0f0f0u, kTop);
    } else if constexpr (F == TileFormat::Q5_0) {
        const uint32_t high = side.high[kC];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            to[i] = and_or(move_bits<4 * kS, 3>(m.main[4 * kC + i]), 0x78787878u, kTop);
        to[0] = and_xor(move_bits<4 * kS, 7>(high), kTop, to[0]);
        to[1] = and_xor(move_bits<4 * kS + 1, 7>(high), kTop, to[1]);
        to[2] = and_xor(move_bits<4 * kS + 2, 7>(high), kTop, to[2]);
        to[3] = and_xor(move_bits<4 * kS + 3, 7>(high), kTop, to[3]);
    } else if constexpr (F == TileFormat::Q6_K) {
        const uint32_t high = side.high[2 * kC + kS];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            to[i] = and_or(move_bits<4 * kS, 2>(m.main[4 * kC + i]), 0x3c3c3c3cu, kTop);
#pragma unroll
        for (int i = 0; i < 4; ++i) to[i] = and_xor(high << (6 - 2 * i), 0xc0c0c0c0u, to[i]);
    } else if constexpr (F == TileFormat::Q3_K) {
        constexpr int kBit = 4 * (kC % 2) + 2 * kS;
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            const uint32_t word = m.main[2 * kC + row], high = side.high[kC / 2 * 2 + row];
            to[row] = and_or(move_bits<4 * kS, 5>(word), 0x60606060u, kTop);
            to[2 + row] = and_or(move_bits<4 * kS + 2, 5>(word), 0x60606060u, kTop);
            to[row] = and_xor(move_bits<kBit, 7>(high), kTop, to[row]);
            to[2 + row] = and_xor(move_bits<kBit + 1, 7>(high), kTop, to[2 + row]);
        }
    } else if constexpr (F == TileFormat::Q4_K && kS == 1) {
#pragma unroll
        for (int i = 0; i < 4; ++i) to[i] = m.main[4 * kC + i] & 0xf0f0f0f0u;
    } else {
        fragment<F, kC, kS>(m, side, book, to, later);
    }
}

// The sums of a group of 16 or 32 columns for rows g and g + 8 of the lane's token t: of its digits h and l.
template <TileFormat F>
struct ByteProducts {
    int32_t c[4] = {};

    DEVICE typename BlockSum<F>::Number of(int r) const {
        return static_cast<typename BlockSum<F>::Number>(kDigit * c[2 * r] + c[2 * r + 1]);
    }
};

// The products of the 32 columns of sub kS: one group, or two of 16. digits: of these columns, the lane's.
template <int kS, TileFormat F, int kParts>
DEVICE void multiply_bytes(const uint32_t (&a)[4], uint2 digits, ByteProducts<F> (&to)[kParts]) {
    if constexpr (kParts == 2) {
        mma_s8_k16(to[0].c, {a[0], a[1]}, digits.x);
        mma_s8_k16(to[1].c, {a[2], a[3]}, digits.y);
    } else if constexpr (F == TileFormat::Q4_K && kS == 1) {
        mma_u8_k32(to[0].c, a, {digits.x, digits.y});
    } else {
        mma_s8_k32(to[0].c, a, {digits.x, digits.y});
    }
}

// Which launches multiply bytes: those of up to eight tokens (16 with Q8_0, whose bytes need no operation at all), and of groups of
// up to four rows whose input is in shared memory. (Only their rows have digits in any case.)
constexpr bool multiplies_bytes(TileFormat format, int groups, bool grouped, bool staged) {
    const int most = format == TileFormat::Q8_0 ? 4 : 2;
    return groups <= most && (!grouped || staged) && !is_half(format) && !is_float(format);
}

// The tokens of the columns of operand B, and how many products `groups` groups of four tokens take. Bytes: a product has four
// tokens, columns 2i and 2i + 1 of product m are the digits h and l of token 4m + i. Binary16: a product has eight, these
// columns are tokens 8m + i and 8m + i + 4.
template <bool kBytes>
struct Columns {
    static constexpr int products(int groups) { return kBytes ? groups : (groups + 1) / 2; }
    static DEVICE int token(int m, int g) {
        return kBytes ? kSmallGroupTokens * m + g / 2
                      : 2 * kSmallGroupTokens * m + g % 2 * kSmallGroupTokens + g / 2;
    }
};

}  // namespace runnel::kernels::cuda
