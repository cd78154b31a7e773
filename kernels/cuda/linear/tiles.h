// The layout of weights in device memory: tiles of 16 rows x 256 columns, in the order in
// which a warp feeds its tensor cores. One layout serves one token, small batches and prefill.
//
// A matrix [rows][cols] is ceil(rows / 16) row tiles, each contiguous; a row tile is its
// 256-column blocks in ascending order; a block is
//     side planes   scales, minimums, upper bits of the weights: always for 256 columns
//     main plane    per 64 columns ("chunk"): the low bits of the weights, or the weights
// A last block of fewer columns has fewer chunks. Padding (rows up to 16, columns up to 64) is
// zero bits, which are weights of value 0 in every format (their scales are 0). All planes and
// blocks start at multiples of 16 bytes. A block takes no more bytes than the 16 x 256 weights
// in the file, with these exceptions: BF16 (0.4% more), the types converted below, and five
// with codebooks: IQ2_XXS, IQ2_XS and IQ3_XXS (6, 5 and 4% more) store all signs here, IQ1_S
// and IQ1_M (16 and 4%) share one format.
//
// Fragment order: lane 4g + t of a warp holds rows g and g + 8 of operand A, of 32 columns in
// four words a0..a3 ("registers") of 4 bytes; byte i of register a belongs to
//     row g + 8 * (a & 1), column 16 * (a >> 1) + 4t + i      of the 32 columns of one group.
// A "code" is the unsigned integer that the file stores for a weight (0..15 for 4-bit types
// ...; int8 for Q8_0). The planes store it as follows:
//     nibbles   [chunk][lane][a] words, byte i: code & 15 of group 2 * chunk in the low nibble, of group
//               2 * chunk + 1 in the high nibble.
//     bytes     [chunk][group of the chunk][lane][a] words: Q8_0.
//     pairs     [half of 128 columns][lane][2 * w + r] words (Q2_K, Q3_K): bits 2j, 2j + 1 of byte i are code
//               & 3 of row g + 8r, column 16 * (8 * half + 4w + j) + 4t + i: groups of 16.
//     bit 4     [lane][chunk] words (Q5_*): bit 4 * s + a of byte i is bit 4 of the code in register a of
//               group 2 * chunk + s.
//     bits 4-5  [chunk pair][lane][2 * (chunk & 1) + s] words (Q6_K): bits 2a, 2a + 1 of byte i, likewise.
//     bit 2     [lane][2 * h + r] words (Q3_K): bit j of byte i belongs to row g + 8r, column 16 * (8h + j) +
//               4t + i.
//     halves    [16 columns][lane][a] words of two binary16: row g + 8 * (a & 1), columns k and k + 1, k =
//               4t + 2 * (a >> 1): the operand A of m16n8k16 with its columns in an order that lets
//               a lane read the activations of 32 columns at once. F16: the weights; BF16:
//               the weights times 2^(142 - e), where 2^(e - 127) <= max|w| < 2^(e - 126) in
//               the row (e at least 16): bf16's 8 bits are kept down to 2^-32 of the row's
//               largest weight, and smaller ones to 2^-40 of it. So one instruction, at its
//               full rate, serves both types, and the activations need not be rounded to 8
//               bits.
//     f32       [16 columns][row half r][lane][4]: row g + 8r, columns 4t .. 4t + 3.
// In formats with codebooks (gguf/codebook.h), an entry of eight weights belongs to two
// lanes, t = 2u and 2u + 1: "pair" 2g + u. j = 4 * s + a is the register of a chunk that
// (half) an entry goes to:
//     indices   [chunk][pair (lane of IQ3)][s] words: byte a is the low 8 bits of the entry's index.
//     upper     bits of the index: IQ2_XS [pair], IQ3_S [lane] words: bit 8 * chunk + j; IQ2_S [pair]
//               [chunk / 2] words: 2 bits from 2 * (8 * (chunk % 2) + j) on; IQ1 [pair][chunk]
//               words: bits 4j .. 4j + 2, and in bit 4j + 3 whether the entry is shifted down.
//     signs     [lane][chunk] words: the sign of weight i (column 4t + i of its 16) is bit 8i + j (IQ3) or
//               16 * s + 4i + a (IQ2), so that a shift and a mask align it with the weights.
// The planes of scales are described with TileFormat.
//
// TQ1_0 and TQ2_0 have no tensor-core recipe of their own; they become Q2_K tiles of the same
// values: scale 1, minimum 1, both factors d. Nor have Q1_0, Q2_0, PQ2_0 and PTQ1_0, whose
// scales are of 128 or 64 weights: they become Q4_0 tiles (code - 8 is -1, 1, or -1, 0, 1, 2),
// which take 4, 2, 2.1 and 2.6 times the bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gguf/block.h"

namespace runnel::kernels::cuda {

inline constexpr int kTileRows = 16, kTileCols = 256, kChunkCols = 64;

// The content of a tile. Side planes in their order; "pair" means {row g, row g + 8} for g = 0..7.
enum class TileFormat : uint8_t {
    F32,      // none
    F16,      // none
    BF16,     // uint8 e[8 pairs][4] (two of them unused), the same in all blocks of a row
    Q4_0,     // f16 d[16 rows][8 groups]
    Q4_1,     // f16 d[16][8], f16 m[16][8]
    Q5_0,     // f16 d[16][8], bit 4
    Q5_1,     // f16 d[16][8], f16 m[16][8], bit 4
    Q8_0,     // f16 d[16][8]
    IQ4_NL,   // f16 d[16][8]
    MXFP4,    // uint8 exponent[16][8]
    Q2_K,     // uint8 scales[16][16] as in the file, f16 {d, dmin}[8 pairs][2]
    Q3_K,     // 6-bit scales[8 pairs][2][12 bytes] as in the file, f16 d[8 pairs][2], bit 2
    Q4_K,     // [16]{f16 d, f16 dmin, 12 bytes of scales and minimums as in the file}
    Q5_K,     // as Q4_K, bit 4
    Q6_K,     // int8 scales[16][16], f16 d[8 pairs][2], bits 4-5
    IQ4_XS,   // [8 pairs]{scales_l of row g, of row g + 8 (4 bytes each), scales_h (2 each), f16 d (2 each)}
    NVFP4,    // uint8 scale[16][16 groups of 16]: UE4M3; 0x7f is 240 here,
              // and the file's 0x7f, which means 0, is stored as 0
    IQ1,      // 4-bit s[8 pairs][2][16 groups of 16], f16 d[8 pairs][2], upper
    IQ2_XXS,  // 4-bit s[8 pairs][2][8 groups], f16 d[8 pairs][2], signs
    IQ2_XS,   // 4-bit s[8 pairs][2][16 groups of 16], f16 d[8 pairs][2], upper, signs
    IQ2_S,    // as IQ2_XS
    IQ3_XXS,  // as IQ2_XXS
    IQ3_S,    // 4-bit s[8 pairs][2][8 groups], f16 d[8 pairs][2], upper, signs
};

// The planes of a block, in bytes. Offsets are from the block's start; the main plane begins at `side`.
struct TileLayout {
    int scales2;  // offset of the second plane of scales (m, or d of the K types)
    int high;     // offset of bit 4, bits 4-5, bit 2 or upper
    int side;     // size of all side planes
    int chunk;    // size of the main plane per 64 columns
    int signs = 0;
};

constexpr TileLayout tile_layout(TileFormat format) {
    switch (format) {
        case TileFormat::F32:
            return {0, 0, 0, 4096};
        case TileFormat::F16:
            return {0, 0, 0, 2048};
        case TileFormat::BF16:
            return {0, 0, 32, 2048};
        case TileFormat::Q4_0:
        case TileFormat::IQ4_NL:
            return {0, 0, 256, 512};
        case TileFormat::Q4_1:
            return {256, 0, 512, 512};
        case TileFormat::Q5_0:
            return {0, 256, 768, 512};
        case TileFormat::Q5_1:
            return {256, 512, 1024, 512};
        case TileFormat::Q8_0:
            return {0, 0, 256, 1024};
        case TileFormat::MXFP4:
            return {0, 0, 128, 512};
        case TileFormat::Q2_K:
            return {256, 0, 320, 256};
        case TileFormat::Q3_K:
            return {192, 224, 736, 256};
        case TileFormat::Q4_K:
            return {0, 0, 256, 512};
        case TileFormat::Q5_K:
            return {0, 256, 768, 512};
        case TileFormat::Q6_K:
            return {256, 288, 1312, 512};
        case TileFormat::IQ4_XS:
            return {0, 0, 128, 512};
        case TileFormat::NVFP4:
            return {0, 0, 256, 512};
        case TileFormat::IQ1:
            return {128, 160, 416, 128};
        case TileFormat::IQ2_XXS:
            return {64, 0, 608, 128, 96};
        case TileFormat::IQ2_XS:
            return {128, 160, 736, 128, 224};
        case TileFormat::IQ2_S:
            return {128, 160, 800, 128, 288};
        case TileFormat::IQ3_XXS:
            return {64, 0, 608, 256, 96};
        case TileFormat::IQ3_S:
            return {64, 96, 736, 256, 224};
    }
    return {};
}

// Whether matrices of a type can be stored in tiles: F32, F16, BF16 and every block format of gguf/block.h.
constexpr bool has_tiles(gguf::Type type) {
    switch (type) {
        case gguf::Type::F32:
        case gguf::Type::F16:
        case gguf::Type::BF16:
        case gguf::Type::Q4_0:
        case gguf::Type::Q4_1:
        case gguf::Type::Q5_0:
        case gguf::Type::Q5_1:
        case gguf::Type::Q8_0:
        case gguf::Type::Q2_K:
        case gguf::Type::Q3_K:
        case gguf::Type::Q4_K:
        case gguf::Type::Q5_K:
        case gguf::Type::Q6_K:
        case gguf::Type::IQ4_NL:
        case gguf::Type::IQ4_XS:
        case gguf::Type::MXFP4:
        case gguf::Type::NVFP4:
        case gguf::Type::Q1_0:
        case gguf::Type::Q2_0:
        case gguf::Type::PQ2_0:
        case gguf::Type::PTQ1_0:
        case gguf::Type::TQ1_0:
        case gguf::Type::TQ2_0:
        case gguf::Type::IQ1_S:
        case gguf::Type::IQ1_M:
        case gguf::Type::IQ2_XXS:
        case gguf::Type::IQ2_XS:
        case gguf::Type::IQ2_S:
        case gguf::Type::IQ3_XXS:
        case gguf::Type::IQ3_S:
            return true;
        default:
            return false;
    }
}

// Precondition: has_tiles(type).
constexpr TileFormat tile_format(gguf::Type type) {
    switch (type) {
        case gguf::Type::F16:
            return TileFormat::F16;
        case gguf::Type::BF16:
            return TileFormat::BF16;
        case gguf::Type::Q4_0:
        case gguf::Type::Q1_0:
        case gguf::Type::Q2_0:
        case gguf::Type::PQ2_0:
        case gguf::Type::PTQ1_0:
            return TileFormat::Q4_0;
        case gguf::Type::Q4_1:
            return TileFormat::Q4_1;
        case gguf::Type::Q5_0:
            return TileFormat::Q5_0;
        case gguf::Type::Q5_1:
            return TileFormat::Q5_1;
        case gguf::Type::Q8_0:
            return TileFormat::Q8_0;
        case gguf::Type::IQ4_NL:
            return TileFormat::IQ4_NL;
        case gguf::Type::MXFP4:
            return TileFormat::MXFP4;
        case gguf::Type::Q2_K:
        case gguf::Type::TQ1_0:
        case gguf::Type::TQ2_0:
            return TileFormat::Q2_K;
        case gguf::Type::Q3_K:
            return TileFormat::Q3_K;
        case gguf::Type::Q4_K:
            return TileFormat::Q4_K;
        case gguf::Type::Q5_K:
            return TileFormat::Q5_K;
        case gguf::Type::Q6_K:
            return TileFormat::Q6_K;
        case gguf::Type::IQ4_XS:
            return TileFormat::IQ4_XS;
        case gguf::Type::NVFP4:
            return TileFormat::NVFP4;
        case gguf::Type::IQ1_S:
        case gguf::Type::IQ1_M:
            return TileFormat::IQ1;
        case gguf::Type::IQ2_XXS:
            return TileFormat::IQ2_XXS;
        case gguf::Type::IQ2_XS:
            return TileFormat::IQ2_XS;
        case gguf::Type::IQ2_S:
            return TileFormat::IQ2_S;
        case gguf::Type::IQ3_XXS:
            return TileFormat::IQ3_XXS;
        case gguf::Type::IQ3_S:
            return TileFormat::IQ3_S;
        default:
            return TileFormat::F32;
    }
}

// --- families of formats

// Multiplied in float32, by plain instructions.
constexpr bool is_float(TileFormat f) {
    return f == TileFormat::F32;
}
// Multiplied by tensor cores without conversion; the others as integers.
constexpr bool is_half(TileFormat f) {
    return f == TileFormat::F16 || f == TileFormat::BF16;
}
// A float scale for each group of weights; otherwise integer scales and a float per 256.
constexpr bool has_group_floats(TileFormat f) {
    return f == TileFormat::Q4_0 || f == TileFormat::Q4_1 || f == TileFormat::Q5_0 || f == TileFormat::Q5_1 ||
           f == TileFormat::Q8_0 || f == TileFormat::IQ4_NL || f == TileFormat::MXFP4 ||
           f == TileFormat::NVFP4;
}
// The sum of a block of 256 is an integer, scales included (linear.h). For that, kernels that multiply binary16 need the sums of a
// group below 2^22 (block_scales.h: HalfProducts), which those of IQ4_XS are not.
constexpr bool has_integer_sums(TileFormat f) {
    return !has_group_floats(f) && !is_float(f) && !is_half(f) && f != TileFormat::IQ4_XS;
}
// Scales per 16 weights (one mma) instead of 32 (two).
constexpr bool has_groups_of_16(TileFormat f) {
    return f == TileFormat::Q2_K || f == TileFormat::Q3_K || f == TileFormat::Q6_K ||
           f == TileFormat::NVFP4 || f == TileFormat::IQ1 || f == TileFormat::IQ2_XS ||
           f == TileFormat::IQ2_S;
}
constexpr bool has_minimum(TileFormat f) {
    return f == TileFormat::Q4_1 || f == TileFormat::Q5_1 || f == TileFormat::Q2_K || f == TileFormat::Q4_K ||
           f == TileFormat::Q5_K;
}
constexpr bool has_bit4(TileFormat f) {
    return f == TileFormat::Q5_0 || f == TileFormat::Q5_1 || f == TileFormat::Q5_K;
}
constexpr bool has_pairs(TileFormat f) {
    return f == TileFormat::Q2_K || f == TileFormat::Q3_K;
}
// Entries of four weights; the other codebooks hold eight.
constexpr bool has_quads(TileFormat f) {
    return f == TileFormat::IQ3_XXS || f == TileFormat::IQ3_S;
}
constexpr bool has_codebook(TileFormat f) {
    return has_quads(f) || f == TileFormat::IQ1 || f == TileFormat::IQ2_XXS || f == TileFormat::IQ2_XS ||
           f == TileFormat::IQ2_S;
}

// --- from a format to code that is compiled for it

template <TileFormat F>
struct FormatConstant {
    static constexpr TileFormat value = F;
};

// Returns visit(FormatConstant<format>()), whose type must be the same for all formats.
template <class Visitor>
constexpr auto with_format(TileFormat format, const Visitor &visit) {
    using enum TileFormat;
    switch (format) {
        case F16:
            return visit(FormatConstant<F16>());
        case BF16:
            return visit(FormatConstant<BF16>());
        case Q4_0:
            return visit(FormatConstant<Q4_0>());
        case Q4_1:
            return visit(FormatConstant<Q4_1>());
        case Q5_0:
            return visit(FormatConstant<Q5_0>());
        case Q5_1:
            return visit(FormatConstant<Q5_1>());
        case Q8_0:
            return visit(FormatConstant<Q8_0>());
        case IQ4_NL:
            return visit(FormatConstant<IQ4_NL>());
        case MXFP4:
            return visit(FormatConstant<MXFP4>());
        case Q2_K:
            return visit(FormatConstant<Q2_K>());
        case Q3_K:
            return visit(FormatConstant<Q3_K>());
        case Q4_K:
            return visit(FormatConstant<Q4_K>());
        case Q5_K:
            return visit(FormatConstant<Q5_K>());
        case Q6_K:
            return visit(FormatConstant<Q6_K>());
        case IQ4_XS:
            return visit(FormatConstant<IQ4_XS>());
        case NVFP4:
            return visit(FormatConstant<NVFP4>());
        case IQ1:
            return visit(FormatConstant<IQ1>());
        case IQ2_XXS:
            return visit(FormatConstant<IQ2_XXS>());
        case IQ2_XS:
            return visit(FormatConstant<IQ2_XS>());
        case IQ2_S:
            return visit(FormatConstant<IQ2_S>());
        case IQ3_XXS:
            return visit(FormatConstant<IQ3_XXS>());
        case IQ3_S:
            return visit(FormatConstant<IQ3_S>());
        default:
            return visit(FormatConstant<F32>());
    }
}

// --- sizes

constexpr int64_t row_tiles(int64_t rows) {
    return (rows + kTileRows - 1) / kTileRows;
}
constexpr int64_t col_blocks(int64_t cols) {
    return (cols + kTileCols - 1) / kTileCols;
}
constexpr int64_t col_chunks(int64_t cols) {
    return (cols + kChunkCols - 1) / kChunkCols;
}
// The same in 32 bits and by shifts, for the starts of kernels: the compiler cannot know that sizes are not negative. (Not
// overloads, which would make 32-bit products of what others multiply.)
constexpr int32_t divided_up(int32_t size, uint32_t by) {
    return static_cast<int32_t>((static_cast<uint32_t>(size) + by - 1) / by);
}
constexpr int32_t row_tiles32(int32_t rows) {
    return divided_up(rows, kTileRows);
}
constexpr int32_t col_blocks32(int32_t cols) {
    return divided_up(cols, kTileCols);
}

// Bytes of a full block, of 16 rows, and of a matrix.
constexpr int64_t block_bytes(TileFormat format) {
    const TileLayout layout = tile_layout(format);
    return layout.side + kTileCols / kChunkCols * layout.chunk;
}
constexpr int64_t row_tile_bytes(TileFormat format, int64_t cols) {
    const TileLayout layout = tile_layout(format);
    return col_blocks(cols) * layout.side + col_chunks(cols) * layout.chunk;
}
constexpr int32_t row_tile_bytes32(TileFormat format, int32_t cols) {
    const TileLayout layout = tile_layout(format);
    return col_blocks32(cols) * layout.side + divided_up(cols, kChunkCols) * layout.chunk;
}
constexpr int64_t tiled_bytes(TileFormat format, int64_t rows, int64_t cols) {
    return row_tiles(rows) * row_tile_bytes(format, cols);
}

}  // namespace runnel::kernels::cuda
