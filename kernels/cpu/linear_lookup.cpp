#include "kernels/cpu/linear_lookup.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "kernels/cpu/lookup_sums.h"

namespace runnel::kernels::cpu {
namespace {

using Bytes = uint8_t __attribute__((vector_size(16)));

// One of four steps that turn [row][column] into [column][row]: after them, vector c has byte c of every row.
void interleave(Bytes (&v)[16]) {
    Bytes out[16];
    for (int i = 0; i < 8; ++i) {
        out[2 * i] =
            __builtin_shufflevector(v[i], v[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        out[2 * i + 1] = __builtin_shufflevector(v[i], v[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29,
                                                 14, 30, 15, 31);
    }
    std::copy_n(out, 16, v);
}

// 128 columns of 16 rows as the file has them: the bytes beside the scales, each of all rows.
struct Part {
    Bytes bytes[2][16];
    uint16_t d[2][kLookupRows];
};

// Of 128 columns, byte k of a plane is columns 8 k and on, of all rows.
using Planes = Bytes[2][16];

template <typename Block>
void split(const Bytes (&bytes)[2][16], Planes &to);

template <>
void split<gguf::BlockQ1_0>(const Bytes (&bytes)[2][16], Planes &to) {
    std::copy_n(bytes[0], 16, to[0]);
}

// The even bits of each byte as the lowest four.
Bytes even_bits(Bytes x) {
    x = (x & 0x55) | (x & 0x55) >> 1;
    x = (x & 0x33) | (x & 0x33) >> 2;
    return x & 0x0f;
}

template <>
void split<gguf::BlockPQ2_0>(const Bytes (&bytes)[2][16], Planes &to) {
    for (int k = 0; k < 16; ++k) {
        const Bytes first = bytes[k / 8][2 * k % 16], last = bytes[k / 8][2 * k % 16 + 1];
        to[0][k] = even_bits(first) | even_bits(last) << 4;
        to[1][k] = even_bits(first >> 1) | even_bits(last >> 1) << 4;
    }
}

template <>
void split<gguf::BlockQ2_0>(const Bytes (&bytes)[2][16], Planes &to) {
    split<gguf::BlockPQ2_0>(bytes, to);
}

// Trit n of each byte.
Bytes trits(Bytes bytes, int n) {
    using Words = uint16_t __attribute__((vector_size(32)));
    constexpr uint16_t kPowers[] = {1, 3, 9, 27, 81};
    const Words product = __builtin_convertvector(bytes, Words) * kPowers[n] & 255;
    return __builtin_convertvector(product * 3 >> 8, Bytes);
}

template <>
void split<gguf::BlockPTQ1_0>(const Bytes (&bytes)[2][16], Planes &to) {
    for (int k = 0; k < 16; ++k) {
        Bytes low = {}, high = {};
        for (int column = 8 * k + 7; column >= 8 * k; --column) {  // where it is: gguf/block.h
            const Bytes number = column < 80    ? trits(bytes[0][column % 16], column / 16)
                                 : column < 120 ? trits(bytes[1][column % 8], (column - 80) / 8)
                                                : trits(bytes[1][8 + column % 2], (column - 120) / 2);
            low = (low + low) | (number & 1);
            high = (high + high) | number >> 1;
        }
        to[0][k] = low, to[1][k] = high;
    }
}

template <typename Block, gguf::Type type>
void write_tiles(const std::byte *weights, int64_t cols, int64_t row0, int64_t row1, std::byte *tiles) {
    constexpr LookupTile tile = lookup_tile(type);
    constexpr int64_t kBlocks = tile.scales;  // of 128 columns
    constexpr size_t kBytes = sizeof(Block) - sizeof(Block::d), kFirst = std::min<size_t>(kBytes, 16);
    const int64_t parts = cols / kLookupCols, row_blocks = parts * kBlocks;
    std::byte *to = tiles + row0 / kLookupRows * parts * bytes_of(tile);
    for (int64_t first = row0; first < row1; first += kLookupRows)
        for (int64_t i = 0; i < parts; ++i) {
            Part part = {};
            for (int64_t r = 0; r < std::min(kLookupRows, row1 - first); ++r)
                for (int64_t b = 0; b < kBlocks; ++b) {
                    Block block;
                    std::memcpy(
                        &block,
                        weights + ((first + r) * row_blocks + i * kBlocks + b) * int64_t{sizeof block},
                        sizeof block);
                    const auto *qs = reinterpret_cast<const std::byte *>(&block) + offsetof(Block, qs);
                    std::memcpy(&part.bytes[b][r], qs, kFirst);
                    if constexpr (kBytes > kFirst)
                        std::memcpy(&part.bytes[1][r], qs + kFirst, kBytes - kFirst);
                    part.d[b][r] = block.d;
                }
            for (auto &half : part.bytes)
                for (int step = 0; step < 4; ++step) interleave(half);
            Planes planes;
            split<Block>(part.bytes, planes);
            for (int p = 0; p < tile.planes; ++p)
                for (int k = 0; k < 16; ++k, to += sizeof(Bytes))  // byte k / 4 of group k % 4
                    std::memcpy(to, &planes[p][k % 4 * 4 + k / 4], sizeof(Bytes));
            std::memcpy(to, part.d, size_t{tile.scales} * sizeof part.d[0]);
            to += size_t{tile.scales} * sizeof part.d[0];
        }
}

}  // namespace

int64_t lookup_stride(gguf::Type type, int64_t cols) {
    return cols % kLookupCols == 0 ? cols / kLookupCols * bytes_of(lookup_tile(type)) : 0;
}

size_t lookup_bytes(gguf::Type type, int64_t rows, int64_t cols) {
    const int64_t bytes = (rows + kLookupRows - 1) / kLookupRows * lookup_stride(type, cols);
    return static_cast<size_t>((bytes + 63) / 64 * 64);
}

void write_lookup_tiles(gguf::Type type, const std::byte *weights, int64_t cols, int64_t row0, int64_t row1,
                        std::byte *tiles) {
    using gguf::Type;
    assert(lookup_stride(type, cols) > 0);
    if (type == Type::Q1_0) write_tiles<gguf::BlockQ1_0, Type::Q1_0>(weights, cols, row0, row1, tiles);
    if (type == Type::Q2_0) write_tiles<gguf::BlockQ2_0, Type::Q2_0>(weights, cols, row0, row1, tiles);
    if (type == Type::PQ2_0) write_tiles<gguf::BlockPQ2_0, Type::PQ2_0>(weights, cols, row0, row1, tiles);
    if (type == Type::PTQ1_0) write_tiles<gguf::BlockPTQ1_0, Type::PTQ1_0>(weights, cols, row0, row1, tiles);
}

size_t lookup_sums_bytes(int64_t cols, int32_t tokens) {
    return static_cast<size_t>(cols / kLookupCols * tokens) * sizeof(LookupSums);
}

}  // namespace runnel::kernels::cpu
