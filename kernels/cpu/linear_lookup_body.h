// The products of linear_lookup.h, written once over the vectors of linear_vector.h.
//
// A register has 16 rows of four (AVX2: two) groups of 32 columns, a group in each part of 128 bits. Four such registers are
// the bytes of these groups: eight look-ups, whose low and high bytes are added as bytes. The rows of a group are then
// four lanes of each of four registers, and each float step of the contract (README.md) is one instruction per register.
//
// 16 rows of 128 columns, 288 bytes of weights, take about 75 vector instructions with AVX-512.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/linear_lookup.h"
#include "kernels/cpu/linear_packed.h"
#include "kernels/cpu/linear_row.h"
#include "kernels/cpu/linear_vector.h"
#include "kernels/cpu/lookup_sums.h"

namespace runnel::kernels::cpu {
namespace {

constexpr int kParts = sizeof(Ints) / 16;  // groups of a register
constexpr int kRegisters = 4 / kParts;     // of four groups
constexpr int64_t kTileBytes = sizeof(OneBitTile);

// --- the sums --------------------------------------------------------------------------------------------

// What sum_four() reads: the bits of the indexes, four bytes each, and where its dwords go.
struct alignas(64) IndexBits {
    uint8_t bits[64];
    int32_t order[16];
};
constexpr IndexBits kIndexBits = [] {
    IndexBits b{};
    for (int i = 0; i < 64; ++i) b.bits[i] = i / 4 >> i % 4 & 1;
    for (int group = 0; group < kParts; ++group)
        for (int quad = 0; quad < 4; ++quad)  // of indexes
            b.order[4 * group + quad] = quad % kParts * 4 + group * kRegisters + quad / kParts;
    return b;
}();

// 512 plus the sums of four activations, for the 16 indexes of each of kParts groups: low + 32 * high. The activations of the
// groups are 32 bytes apart, from `q` on.
[[gnu::always_inline]] inline void sum_four(const int8_t *q, uint8_t (*low)[16], uint8_t (*high)[16]) {
    // Vectors 0 to 3: of a group, or a half of its indexes.
    const auto sums = [&](int vector) __attribute__((always_inline)) {
        int32_t four;
        __builtin_memcpy(&four, q + 32 * (vector / kRegisters), sizeof four);
        const uint8_t *bits = kIndexBits.bits + 16 * kParts * (vector % kRegisters);
        return dot4(splat(512), load_ints(reinterpret_cast<const int32_t *>(bits)),
                    splat(static_cast<uint32_t>(four)));
    };
    const Ints first = narrow32(sums(0), sums(1)), last = narrow32(sums(2), sums(3)), mask = splat16(31);
    const Ints order = load_ints(kIndexBits.order);
    store_ints(low, permute_lanes(narrow16(first & mask, last & mask), order));
    store_ints(high, permute_lanes(narrow16(right16(first, 5), right16(last, 5)), order));
}

// The sums of 128 columns, half `half` of a record.
[[gnu::always_inline]] inline void sum_columns(const PackedQ8x32 &record, int64_t half, LookupSums &sums) {
    const int8_t *q = record.q + OneBitTile::kCols * half;
    for (int byte = 0; byte < 4; ++byte)
        for (int nibble = 0; nibble < 2; ++nibble)
            for (int group = 0; group < 4; group += kParts)
                sum_four(q + 32 * group + 8 * byte + 4 * nibble, sums.low[byte][nibble] + group,
                         sums.high[byte][nibble] + group);
    for (int64_t group = 0; group < 4; ++group)
        for (int i = 0; i < 4; ++i) {
            // Eight sums are 8 * 512 too large, and twice them is what counts; start is -128 * sum(q).
            sums.start[group][i] = (record.start[4 * half + group] >> 7) - 2 * 8 * 512;
            sums.scale[group][i] = record.scale[4 * half + group];
        }
}

void sum(const void *packed, int64_t cols, int32_t tokens, void *to) {
    const auto *records = static_cast<const PackedQ8x32 *>(packed);
    auto *sums = static_cast<LookupSums *>(to);
    for (int32_t t = 0; t < tokens; ++t)
        for (int64_t b = 0; b < cols / OneBitTile::kCols; ++b)
            sum_columns(records[b / 2 * tokens + t], b % 2, *sums++);
}

// --- the products ----------------------------------------------------------------------------------------

// Adds the products of a tile to four of the contract's eight partial sums: [register][quad of rows], a sum per part.
[[gnu::always_inline]] inline void add_tile(const std::byte *tile, const LookupSums &a,
                                            Floats (&partial)[kRegisters][4]) {
    const std::byte *bits = tile + offsetof(OneBitTile, bits);
    const Ints nibble = splat(0x0f0f0f0f), zero = splat(0);
    Floats d[4];
    load_quads(tile + offsetof(OneBitTile, d), d);
#pragma GCC unroll 2
    for (int reg = 0; reg < kRegisters; ++reg) {
        const int group = reg * kParts;
        Ints low = zero, high = zero;
#pragma GCC unroll 4
        for (int byte = 0; byte < 4; ++byte) {
            const Ints v = load_ints(reinterpret_cast<const int32_t *>(bits + 64 * byte + 16 * group));
            const Ints index[2] = {v & nibble, right16(v, 4) & nibble};
            const auto add = [&](Ints & total, const uint8_t(&tables)[2][4][16])
                __attribute__((always_inline)) {
                const auto found = [&](int half) __attribute__((always_inline)) {
                    return lookup_by_part(load_ints(reinterpret_cast<const int32_t *>(tables[half][group])),
                                          index[half]);
                };
                total = add8(total, add8(found(0), found(1)));
            };
            add(low, a.low[byte]);
            add(high, a.high[byte]);
        }
        const auto twice = [&](Ints pairs) __attribute__((always_inline)) {  // 2 * (low + 32 * high)
            return dot2(pairs, splat16(2 | 64 << 8));
        };
        const Ints totals[2] = {twice(interleave_low8(low, high)), twice(interleave_high8(low, high))};
        const Ints start = load_ints(a.start[group]);
        const Floats scale = load_floats(a.scale[group]);
#pragma GCC unroll 4
        for (int quad = 0; quad < 4; ++quad) {
            const Ints lanes = quad % 2 == 0 ? interleave_low16(totals[quad / 2], zero)
                                             : interleave_high16(totals[quad / 2], zero);
            partial[reg][quad] =
                fma_floats(d[quad] * scale, ints_to_floats(add32(start, lanes)), partial[reg][quad]);
        }
    }
}

// The product of 16 rows and a token. ahead: null if nothing is to be prefetched.
[[gnu::always_inline]] inline void multiply_tiles(const std::byte *tile, const LookupSums *a, int64_t count,
                                                  const Ahead *ahead, float *out) {
    Floats partial[2][kRegisters][4];
    for (auto &half : partial)
        for (auto &reg : half)
            for (Floats &sums : reg) sums = zero_floats();
    int64_t b = 0;
    for (; b + 1 < count; b += 2, tile += 2 * kTileBytes) {
        if (ahead) ahead->prefetch<2 * kTileBytes>(tile);
        add_tile(tile, a[b], partial[0]);
        add_tile(tile + kTileBytes, a[b + 1], partial[1]);
    }
    if (b < count) add_tile(tile, a[b], partial[0]);
    for (int quad = 0; quad < 4; ++quad) {  // the contract's fold
        Floats sums[kRegisters];
        for (int reg = 0; reg < kRegisters; ++reg) sums[reg] = partial[0][reg][quad] + partial[1][reg][quad];
        const __m256 two = add_parts(sums);
        _mm_storeu_ps(out + 4 * quad, _mm_add_ps(_mm256_castps256_ps128(two), _mm256_extractf128_ps(two, 1)));
    }
}

void multiply_by_lookup(const std::byte *tiles, int64_t cols, int64_t row0, int64_t row1, const void *sums,
                        int32_t tokens, float *out, int64_t out_stride, const std::byte *next) {
    const int64_t count = cols / OneBitTile::kCols, stride = count * kTileBytes;
    const int64_t first = row0 / OneBitTile::kRows;
    const auto *of_tokens = static_cast<const LookupSums *>(sums);
    const RowRange range{tiles + first * stride, stride,
                         (row1 - row0 + OneBitTile::kRows - 1) / OneBitTile::kRows, next};
    for_each_row(
        range, [&](const std::byte *tile, int64_t i, Ahead ahead) __attribute__((always_inline)) {
            const int64_t row = row0 + i * OneBitTile::kRows, left = row1 - row;
            for (int32_t t = 0; t < tokens; ++t) {
                float *to = out + t * out_stride + row, rows[OneBitTile::kRows];
                const bool whole = left >= OneBitTile::kRows;
                multiply_tiles(tile, of_tokens + t * count, count, t == 0 ? &ahead : nullptr,
                               whole ? to : rows);
                for (int64_t r = 0; !whole && r < left; ++r) to[r] = rows[r];
            }
        });
}

}  // namespace
}  // namespace runnel::kernels::cpu
