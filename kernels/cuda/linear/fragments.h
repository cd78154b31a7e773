// Turns a block of a tile (tiles.h) into operands A of mma_f16_k16: the loads of a lane, a few bit operations
// per word of four codes, and two instructions that convert them to binary16. A code c placed under the bits
// of 1024 reads as exactly 1024 + c, and the subtraction that follows includes the offset of the codes.
// Recipes are chosen at compile time and shared by every kernel that multiplies binary16; weight_bytes.h has those for int8.
//
// Indices: lane = 4g + t holds rows g and g + 8 ("row r" = g + 8r); chunk c = 64 columns, sub s = 32 of them,
// register a as in tiles.h; group = 2c + s.
#pragma once

#include "kernels/cuda/linear/codebooks.h"
#include "kernels/cuda/linear/tiles.h"
#include "kernels/cuda/runtime/device.h"
#include "kernels/cuda/runtime/nibble_table.h"

namespace runnel::kernels::cuda {

template <int V>
struct Constant {
    static constexpr int value = V;
};

// Formats whose values come from a table of 16.
constexpr bool has_table(TileFormat f) {
    return f == TileFormat::IQ4_NL || f == TileFormat::IQ4_XS || f == TileFormat::MXFP4 ||
           f == TileFormat::NVFP4;
}

// Formats whose table values are binary16 numbers with a zero low byte (at most three significant bits).
constexpr bool has_short_floats(TileFormat f) {
    return f == TileFormat::MXFP4 || f == TileFormat::NVFP4;
}

// The offset to subtract from a code of fragment() to get the weight's integer (IQ3: its magnitude).
constexpr int code_offset(TileFormat f) {
    if (f == TileFormat::IQ4_NL || f == TileFormat::IQ4_XS || (has_codebook(f) && !has_quads(f))) return 128;
    switch (f) {
        case TileFormat::Q8_0:
            return 128;
        case TileFormat::Q4_0:
            return 8;
        case TileFormat::Q5_0:
            return 16;
        case TileFormat::Q6_K:
            return 32;
        case TileFormat::Q3_K:
            return 4;
        default:
            return 0;
    }
}

// A lane's part of one block of 16 x 256 weights: the main plane and the side planes.
template <TileFormat F>
struct MainRegisters {
    static constexpr int kWords = F == TileFormat::Q8_0 ? 32 : has_pairs(F) || has_codebook(F) ? 8 : 16;
    uint32_t main[kWords];
};
template <TileFormat F>
struct SideRegisters {
    static constexpr int kScale = has_codebook(F) ? (has_groups_of_16(F) ? 4 : 2)
                                  : F == TileFormat::MXFP4 || F == TileFormat::IQ4_XS ? 4
                                  : F == TileFormat::Q3_K                             ? 6
                                                                                      : 8;
    static constexpr int kScale2 = F == TileFormat::Q4_1 || F == TileFormat::Q5_1 ? 8
                                   : F == TileFormat::Q2_K                        ? 2
                                                                                  : 1;
    static constexpr int kHigh = F == TileFormat::Q6_K                                          ? 8
                                 : has_bit4(F) || F == TileFormat::Q3_K || F == TileFormat::IQ1 ? 4
                                 : F == TileFormat::IQ2_S                                       ? 2
                                                                                                : 1;
    static constexpr int kSigns = tile_layout(F).signs != 0 ? 4 : 1;
    uint32_t scale[kScale], scale2[kScale2], high[kHigh], signs[kSigns];
};

// How weights are read: GlobalWeights bypasses L1, for weights that only one warp reads;
// CachedWeights goes through L1 and also reads copies in shared memory.
struct GlobalWeights {
    static DEVICE uint4 load128(const std::byte *p) { return ldg128_stream(p); }
    static DEVICE uint2 load64(const std::byte *p) { return ldg64_stream(p); }
    static DEVICE uint32_t load32(const std::byte *p) { return ldg32_stream(p); }
};
struct CachedWeights {
    static DEVICE uint4 load128(const std::byte *p) { return ld128(p); }
    static DEVICE uint2 load64(const std::byte *p) { return ld64(p); }
    static DEVICE uint32_t load32(const std::byte *p) { return *reinterpret_cast<const uint32_t *>(p); }
};

template <int kAt, class Memory, int kSize>
DEVICE void load_four(uint32_t (&to)[kSize], const std::byte *from) {
    static_assert(kAt + 4 <= kSize);
    const uint4 v = Memory::load128(from);
    to[kAt] = v.x, to[kAt + 1] = v.y, to[kAt + 2] = v.z, to[kAt + 3] = v.w;
}
template <int kAt, class Memory, int kSize>
DEVICE void load_two(uint32_t (&to)[kSize], const std::byte *from) {
    static_assert(kAt + 2 <= kSize);
    const uint2 v = Memory::load64(from);
    to[kAt] = v.x, to[kAt + 1] = v.y;
}

template <TileFormat F, class Memory>
DEVICE void load_codebook_side(const std::byte *block, SideRegisters<F> &r) {
    constexpr TileLayout kLayout = tile_layout(F);
    const int lane = lane_index(), g = lane >> 2;
    if constexpr (has_groups_of_16(F))
        load_four<0, Memory>(r.scale, block + 16 * g);
    else
        load_two<0, Memory>(r.scale, block + 8 * g);
    r.scale2[0] = Memory::load32(block + kLayout.scales2 + 4 * g);
    const std::byte *high = block + kLayout.high;
    if constexpr (F == TileFormat::IQ1) load_four<0, Memory>(r.high, high + 16 * (lane >> 1));
    if constexpr (F == TileFormat::IQ2_S) load_two<0, Memory>(r.high, high + 8 * (lane >> 1));
    if constexpr (F == TileFormat::IQ2_XS) r.high[0] = Memory::load32(high + 4 * (lane >> 1));
    if constexpr (F == TileFormat::IQ3_S) r.high[0] = Memory::load32(high + 4 * lane);
    if constexpr (kLayout.signs != 0) load_four<0, Memory>(r.signs, block + kLayout.signs + 16 * lane);
}

template <TileFormat F, class Memory>
DEVICE void load_plain_side(const std::byte *block, SideRegisters<F> &r) {
    constexpr TileLayout kLayout = tile_layout(F);
    const int lane = lane_index(), g = lane >> 2;
    if constexpr (F == TileFormat::MXFP4) {
        load_two<0, Memory>(r.scale, block + 8 * g);
        load_two<2, Memory>(r.scale, block + 8 * (g + 8));
    } else if constexpr (F == TileFormat::Q3_K) {
        load_two<0, Memory>(r.scale, block + 24 * g);
        load_two<2, Memory>(r.scale, block + 24 * g + 8);
        load_two<4, Memory>(r.scale, block + 24 * g + 16);
    } else if constexpr (F == TileFormat::IQ4_XS) {
        load_four<0, Memory>(r.scale, block + 16 * g);
    } else {
        load_four<0, Memory>(r.scale, block + 16 * g);
        load_four<4, Memory>(r.scale, block + 16 * (g + 8));
    }
    if constexpr (F == TileFormat::Q4_1 || F == TileFormat::Q5_1) {
        load_four<0, Memory>(r.scale2, block + kLayout.scales2 + 16 * g);
        load_four<4, Memory>(r.scale2, block + kLayout.scales2 + 16 * (g + 8));
    } else if constexpr (F == TileFormat::Q2_K) {
        load_two<0, Memory>(r.scale2, block + kLayout.scales2 + 8 * g);
    } else if constexpr (F == TileFormat::Q3_K || F == TileFormat::Q6_K) {
        r.scale2[0] = Memory::load32(block + kLayout.scales2 + 4 * g);
    }
    if constexpr (kLayout.high != 0) load_four<0, Memory>(r.high, block + kLayout.high + 16 * lane);
    if constexpr (F == TileFormat::Q6_K) load_four<4, Memory>(r.high, block + kLayout.high + 512 + 16 * lane);
}

template <TileFormat F, class Memory = GlobalWeights>
DEVICE void load_side(const std::byte *block, SideRegisters<F> &r) {
    if constexpr (has_codebook(F))
        load_codebook_side<F, Memory>(block, r);
    else
        load_plain_side<F, Memory>(block, r);
}

// Loads chunk kC of a block; formats with two chunks per load do so at kC = 1 and 3.
template <TileFormat F, int kC, class Memory = GlobalWeights>
DEVICE void load_chunk(const std::byte *block, MainRegisters<F> &r) {
    const std::byte *main = block + tile_layout(F).side + 16 * lane_index();
    if constexpr (has_codebook(F)) {
        constexpr TileLayout kLayout = tile_layout(F);
        const int owner = has_quads(F) ? lane_index() : lane_index() >> 1;
        load_two<2 * kC, Memory>(r.main, block + kLayout.side + kLayout.chunk * kC + 8 * owner);
    } else if constexpr (has_pairs(F)) {
        if constexpr (kC % 2 == 1) load_four<kC / 2 * 4, Memory>(r.main, main + kC / 2 * 512);
    } else if constexpr (F == TileFormat::Q8_0) {
        load_four<8 * kC, Memory>(r.main, main + 1024 * kC);
        load_four<8 * kC + 4, Memory>(r.main, main + 1024 * kC + 512);
    } else {
        load_four<4 * kC, Memory>(r.main, main + 512 * kC);
    }
}

// --- codes ---------------------------------------------------------------------------------------------

// Moves bit `from` of each byte of `word` to bit `to`.
template <int kFrom, int kTo>
DEVICE uint32_t move_bits(uint32_t word) {
    if constexpr (kFrom > kTo)
        return word >> (kFrom - kTo);
    else
        return word << (kTo - kFrom);
}

// For formats with a table: the codes of both subs of chunk kC, whose nibbles share the same words; or (kInt8) their values.
template <TileFormat F, int kC, bool kInt8 = false>
DEVICE void look_up_chunk(const MainRegisters<F> &m, uint32_t (&first)[4], uint32_t (&second)[4]) {
    // gguf::kMXFP4Values as the upper bytes of binary16 numbers, four to a word, or as int8.
    constexpr bool kMXFP4 = has_short_floats(F);
    constexpr uint32_t kFlip = kInt8 ? 0x80808080u : 0;
    const uint32_t halves[4] = {0x42403c00u, 0x4a484644u, 0xc2c0bc00u, 0xcac8c6c4u},
                   integers[4] = {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu};
    const uint32_t table[4] = {kMXFP4 ? (kInt8 ? integers : halves)[0] : kIQ4Word0 ^ kFlip,
                               kMXFP4 ? (kInt8 ? integers : halves)[1] : kIQ4Word1 ^ kFlip,
                               kMXFP4 ? (kInt8 ? integers : halves)[2] : kIQ4Word2 ^ kFlip,
                               kMXFP4 ? (kInt8 ? integers : halves)[3] : kIQ4Word3 ^ kFlip};
#pragma unroll
    for (int i = 0; i < 4; ++i) look_up(table, m.main[4 * kC + i], first[i], second[i]);
}

// The codes of register kA of chunk kC, sub kS; or (kInt8) their values, of IQ3 their magnitudes.
template <TileFormat F, int kC, int kS, int kA, bool kInt8 = false>
DEVICE uint32_t codebook_register(const MainRegisters<F> &m, const SideRegisters<F> &side,
                                  const Book<F> &book) {
    constexpr int kJ = 4 * kS + kA;
    uint32_t index = m.main[2 * kC + kS] >> 8 * kA & 255u;
    if constexpr (F == TileFormat::IQ1)
        index |= move_bits<4 * kJ, 8>(side.high[kC]) & 0x700u;
    else if constexpr (F == TileFormat::IQ2_S)
        index |= move_bits<2 * (8 * (kC % 2) + kJ), 8>(side.high[kC / 2]) & 0x300u;
    else if constexpr (F == TileFormat::IQ2_XS || F == TileFormat::IQ3_S)
        index |= move_bits<8 * kC + kJ, 8>(side.high[0]) & 0x100u;
    if constexpr (F == TileFormat::IQ1) {
        return book_values<F, kInt8>(book[index] ^ (side.high[kC] >> (4 * kJ + 3) & 1u) * 0x4444u);
    } else if constexpr (has_quads(F)) {
        return book[index];
    } else {
        return book_values<F, kInt8>(book[index] ^ (move_bits<16 * kS + kA, 2>(side.signs[kC]) & 0x4444u));
    }
}

// The four words of chunk kC, sub kS (tiles.h: registers): a code for each of 16 weights. later: the call for
// sub 0 leaves here what it has computed for sub 1; pass it to the call for sub 1.
template <TileFormat F, int kC, int kS>
DEVICE void fragment(const MainRegisters<F> &m, const SideRegisters<F> &side, const Book<F> &book,
                     uint32_t (&a)[4], uint32_t (&later)[4]) {
    if constexpr (has_codebook(F)) {
        a[0] = codebook_register<F, kC, kS, 0>(m, side, book);
        a[1] = codebook_register<F, kC, kS, 1>(m, side, book);
        a[2] = codebook_register<F, kC, kS, 2>(m, side, book);
        a[3] = codebook_register<F, kC, kS, 3>(m, side, book);
    } else if constexpr (F == TileFormat::Q8_0) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = m.main[8 * kC + 4 * kS + i] ^ 0x80808080u;
    } else if constexpr (has_table(F)) {
        if constexpr (kS == 0) {
            look_up_chunk<F, kC>(m, a, later);
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) a[i] = later[i];
        }
    } else if constexpr (has_pairs(F)) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            const uint32_t word = m.main[2 * kC + row];
            a[row] = word >> 4 * kS & 0x03030303u;
            a[2 + row] = word >> (4 * kS + 2) & 0x03030303u;
            if constexpr (F == TileFormat::Q3_K) {
                const uint32_t high = side.high[kC / 2 * 2 + row];
                constexpr int kBit = 4 * (kC % 2) + 2 * kS;
                a[row] |= move_bits<kBit, 2>(high) & 0x04040404u;
                a[2 + row] |= move_bits<kBit + 1, 2>(high) & 0x04040404u;
            }
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = m.main[4 * kC + i] >> 4 * kS & 0x0f0f0f0fu;
        if constexpr (has_bit4(F)) {
            const uint32_t high = side.high[kC];
            a[0] |= move_bits<4 * kS, 4>(high) & 0x10101010u;
            a[1] |= move_bits<4 * kS + 1, 4>(high) & 0x10101010u;
            a[2] |= move_bits<4 * kS + 2, 4>(high) & 0x10101010u;
            a[3] |= move_bits<4 * kS + 3, 4>(high) & 0x10101010u;
        } else if constexpr (F == TileFormat::Q6_K) {
            const uint32_t high = side.high[2 * kC + kS];
            a[0] |= high << 4 & 0x30303030u;
            a[1] |= high << 2 & 0x30303030u;
            a[2] |= high & 0x30303030u;
            a[3] |= high >> 2 & 0x30303030u;
        }
    }
}

// --- operand A ---------------------------------------------------------------------------------------------

// A word with the same binary16 number in both halves.
constexpr uint32_t twice(uint32_t half) {
    return half << 16 | half;
}
// The binary16 numbers 1024 + n, for n < 1024, and -(64 + n), for n < 64.
constexpr uint32_t half_of_1024(int n) {
    return 0x6400u + static_cast<uint32_t>(n);
}
constexpr uint32_t half_of_minus_64(int n) {
    return 0xd400u + 16 * static_cast<uint32_t>(n);
}

// Formats whose codes are the nibbles of the main plane: they are converted without an expansion to bytes.
constexpr bool has_plain_nibbles(TileFormat f) {
    return f == TileFormat::Q4_0 || f == TileFormat::Q4_1 || f == TileFormat::Q4_K;
}

// Converts the codes in bytes 0 and 2, or (kOdd) 1 and 3, to two binary16 numbers: code - code_offset().
template <TileFormat F, bool kOdd>
DEVICE uint32_t numbers_of(uint32_t codes) {
    if constexpr (has_short_floats(F)) return prmt(codes, 0, kOdd ? 0x3414u : 0x2404u);
    return h2_sub(prmt(codes, twice(0x6400u), kOdd ? 0x5351u : 0x5250u), twice(half_of_1024(code_offset(F))));
}
// Converts the low, or (kHigh) high, nibbles of bytes 0 and 2; high ones read as 1024 + 16 c, then / 16.
template <TileFormat F, bool kHigh>
DEVICE uint32_t numbers_of_nibbles(uint32_t word) {
    const uint32_t under = and_or(word, twice(kHigh ? 0xf0u : 0x0fu), twice(0x6400u));
    if constexpr (kHigh)
        return h2_fma(under, twice(0x2c00u), twice(half_of_minus_64(code_offset(F))));
    else
        return h2_sub(under, twice(half_of_1024(code_offset(F))));
}

// Operands A of chunk kC, sub kS: [h] for columns 16 h .. 16 h + 15, in the order of the activations' codes.
// later: as in fragment().
template <TileFormat F, int kC, int kS>
DEVICE void weight_numbers(const MainRegisters<F> &m, const SideRegisters<F> &side, const Book<F> &book,
                           uint32_t (&to)[2][4], uint32_t (&later)[4]) {
    if constexpr (has_plain_nibbles(F)) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t word = m.main[4 * kC + i];
            to[i / 2][i % 2] = numbers_of_nibbles<F, kS == 1>(word);
            to[i / 2][2 + i % 2] = numbers_of_nibbles<F, kS == 1>(word >> 8);
        }
    } else {
        uint32_t codes[4];
        fragment<F, kC, kS>(m, side, book, codes, later);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            to[i / 2][i % 2] = numbers_of<F, false>(codes[i]);
            to[i / 2][2 + i % 2] = numbers_of<F, true>(codes[i]);
        }
    }
    if constexpr (has_quads(F)) {
        // Bit 4 kS + i of each byte of `signs` becomes the sign of a number.
        const uint32_t signs = side.signs[kC];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            to[i / 2][i % 2] ^= signs << (15 - 4 * kS - i) & 0x80008000u;
            to[i / 2][2 + i % 2] ^= signs << (7 - 4 * kS - i) & 0x80008000u;
        }
    }
}

}  // namespace runnel::kernels::cuda
