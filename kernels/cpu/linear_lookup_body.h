// The products of linear_lookup.h, written once over the vectors of linear_vector.h.
//
// A register has 16 rows of four (AVX2: two) groups of 32 columns, a group in each part of 128 bits. Four such registers are
// the bytes of these groups: eight look-ups, whose low and high bytes are added as bytes. The rows of a group are then
// four lanes of each of four registers, and each float step of the contract (README.md) is one instruction per register.
//
// 16 rows of 128 columns take about 75 vector instructions with AVX-512 for one bit (288 bytes), 125 for two (544 or 576 bytes).
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
    const int8_t *q = record.q + kLookupCols * half;
    for (int byte = 0; byte < 4; ++byte)
        for (int nibble = 0; nibble < 2; ++nibble)
            for (int group = 0; group < 4; group += kParts)
                sum_four(q + 32 * group + 8 * byte + 4 * nibble, sums.low[byte][nibble] + group,
                         sums.high[byte][nibble] + group);
    for (int64_t group = 0; group < 4; ++group)
        for (int i = 0; i < 4; ++i) {
            sums.minus_sum[group][i] = record.start[4 * half + group] >> 7;
            sums.scale[group][i] = record.scale[4 * half + group];
        }
}

void sum(const void *packed, int64_t cols, int32_t tokens, void *to) {
    const auto *records = static_cast<const PackedQ8x32 *>(packed);
    auto *sums = static_cast<LookupSums *>(to);
    for (int32_t t = 0; t < tokens; ++t)
        for (int64_t b = 0; b < cols / kLookupCols; ++b)
            sum_columns(records[b / 2 * tokens + t], b % 2, *sums++);
}

// --- the products ----------------------------------------------------------------------------------------

// The low and the high bytes of the sums of a plane's groups: [group][row].
struct Bytes {
    Ints low, high;
};

// bits: of a plane, from the first of kParts groups on.
[[gnu::always_inline]] inline Bytes look_up(const std::byte *bits, const LookupSums &a, int group) {
    const Ints nibble = splat(0x0f0f0f0f);
    Bytes total{splat(0), splat(0)};
#pragma GCC unroll 4
    for (int byte = 0; byte < 4; ++byte) {
        const Ints v = load_ints(reinterpret_cast<const int32_t *>(bits + kLookupRows * 4 * byte));
        const Ints index[2] = {v & nibble, right16(v, 4) & nibble};
        const auto add = [&](Ints & sum, const uint8_t(&tables)[2][4][16]) __attribute__((always_inline)) {
            const auto found = [&](int half) __attribute__((always_inline)) {
                return lookup_by_part(load_ints(reinterpret_cast<const int32_t *>(tables[half][group])),
                                      index[half]);
            };
            sum = add8(sum, add8(found(0), found(1)));
        };
        add(total.low, a.low[byte]);
        add(total.high, a.high[byte]);
    }
    return total;
}

// factor * (low + 32 * high), as numbers of 16 bits: rows 0 to 7 of each group, then the others.
[[gnu::always_inline]] inline void widen(const Bytes &sums, int factor, Ints (&rows)[2]) {
    const Ints factors = splat16(static_cast<int16_t>(factor | factor * 32 << 8));
    rows[0] = dot2(interleave_low8(sums.low, sums.high), factors);
    rows[1] = dot2(interleave_high8(sums.low, sums.high), factors);
}

// Adds the products of a tile to four of the contract's eight partial sums: [register][quad of rows], a sum per part.
// (A weight is 2 * bit - 1, or low bit + 2 * high bit - 1. The sums fit in 16 bits: 3 * 248 * 33 < 2^15.)
template <LookupTile shape>
[[gnu::always_inline]] inline void add_tile(const std::byte *tile, const LookupSums &a,
                                            Floats (&partial)[kRegisters][4]) {
    constexpr int64_t kPlane = kLookupRows * kLookupCols / 8, kScales = kLookupRows * 2;
    const Ints offset = splat(static_cast<uint32_t>(-(shape.planes + 1) * kLookupOffset));
#pragma GCC unroll 2
    for (int reg = 0; reg < kRegisters; ++reg) {
        const int group = reg * kParts;
        Ints rows[2];
        widen(look_up(tile + kLookupRows * group, a, group), shape.planes == 1 ? 2 : 1, rows);
        if constexpr (shape.planes == 2) {
            Ints high[2];
            widen(look_up(tile + kPlane + kLookupRows * group, a, group), 2, high);
            rows[0] = add16(rows[0], high[0]), rows[1] = add16(rows[1], high[1]);
        }
        const Ints start = add32(load_ints(a.minus_sum[group]), offset);
        const Floats scale = load_floats(a.scale[group]);
        Floats d[4];
        const std::byte *scales = tile + shape.planes * kPlane;
        load_quads(scales + kScales * (group * shape.scales / 4),
                   scales + kScales * ((group + kParts / 2) * shape.scales / 4), d);
#pragma GCC unroll 4
        for (int quad = 0; quad < 4; ++quad) {
            const Ints lanes = quad % 2 == 0 ? interleave_low16(rows[quad / 2], splat(0))
                                             : interleave_high16(rows[quad / 2], splat(0));
            partial[reg][quad] =
                fma_floats(d[quad] * scale, ints_to_floats(add32(start, lanes)), partial[reg][quad]);
        }
    }
}

// The product of 16 rows and a token. ahead: null if nothing is to be prefetched.
template <LookupTile shape>
[[gnu::always_inline]] inline void multiply_tiles(const std::byte *tile, const LookupSums *a, int64_t count,
                                                  const Ahead *ahead, float *out) {
    Floats partial[2][kRegisters][4];
    for (auto &half : partial)
        for (auto &reg : half)
            for (Floats &sums : reg) sums = zero_floats();
    int64_t b = 0;
    for (; b + 1 < count; b += 2, tile += 2 * bytes_of(shape)) {
        if (ahead) ahead->prefetch<2 * bytes_of(shape)>(tile);
        add_tile<shape>(tile, a[b], partial[0]);
        add_tile<shape>(tile + bytes_of(shape), a[b + 1], partial[1]);
    }
    if (b < count) add_tile<shape>(tile, a[b], partial[0]);
    for (int quad = 0; quad < 4; ++quad) {  // the contract's fold
        Floats sums[kRegisters];
        for (int reg = 0; reg < kRegisters; ++reg) sums[reg] = partial[0][reg][quad] + partial[1][reg][quad];
        const __m256 two = add_parts(sums);
        _mm_storeu_ps(out + 4 * quad, _mm_add_ps(_mm256_castps256_ps128(two), _mm256_extractf128_ps(two, 1)));
    }
}

template <LookupTile shape>
void multiply_by_lookup(const std::byte *tiles, int64_t cols, int64_t row0, int64_t row1, const void *sums,
                        int32_t tokens, float *out, int64_t out_stride, const std::byte *next) {
    const int64_t count = cols / kLookupCols, stride = count * bytes_of(shape);
    const auto *of_tokens = static_cast<const LookupSums *>(sums);
    const RowRange range{tiles + row0 / kLookupRows * stride, stride,
                         (row1 - row0 + kLookupRows - 1) / kLookupRows, next};
    for_each_row(
        range, [&](const std::byte *tile, int64_t i, Ahead ahead) __attribute__((always_inline)) {
            const int64_t row = row0 + i * kLookupRows, left = row1 - row;
            for (int32_t t = 0; t < tokens; ++t) {
                float *to = out + t * out_stride + row, rows[kLookupRows];
                const bool whole = left >= kLookupRows;
                multiply_tiles<shape>(tile, of_tokens + t * count, count, t == 0 ? &ahead : nullptr,
                                      whole ? to : rows);
                for (int64_t r = 0; !whole && r < left; ++r) to[r] = rows[r];
            }
        });
}

void multiply_by_lookup(gguf::Type type, const std::byte *tiles, int64_t cols, int64_t row0, int64_t row1,
                        const void *sums, int32_t tokens, float *out, int64_t out_stride,
                        const std::byte *next) {
    using gguf::Type;
    const auto with = [&]<Type of>() {
        if (type == of)
            multiply_by_lookup<lookup_tile(of)>(tiles, cols, row0, row1, sums, tokens, out, out_stride, next);
    };
    with.template operator()<Type::Q1_0>();
    with.template operator()<Type::Q2_0>();
    with.template operator()<Type::PQ2_0>();
    with.template operator()<Type::PTQ1_0>();
}

}  // namespace
}  // namespace runnel::kernels::cpu
