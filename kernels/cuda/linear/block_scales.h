// The scales and minimums of a block of a tile (tiles.h), and what they do to the sums of its groups, for every kernel that
// multiplies quantized weights. Indices as in fragments.h.
#pragma once

#include <type_traits>

#include "kernels/cuda/linear/fragments.h"

namespace runnel::kernels::cuda {

DEVICE float half_of(uint32_t word, int index) {
    return f16_to_f32(static_cast<uint16_t>(index == 0 ? word : word >> 16));
}

// The scale of group kGroup (of 16 or 32 weights) in row r, of formats with floats per group.
template <TileFormat F, int kGroup>
DEVICE float group_scale(const SideRegisters<F> &registers, int r) {
    if constexpr (F == TileFormat::NVFP4) {
        // UE4M3 bits placed in a float have another exponent bias: times 2^119 they are half the number, also if it is
        // subnormal.
        const uint32_t scale = registers.scale[4 * r + kGroup / 4] >> 8 * (kGroup % 4) & 255u;
        return bits_float(scale << 20) * 0x1p119f;
    } else if constexpr (F == TileFormat::MXFP4) {
        const uint32_t e = registers.scale[2 * r + kGroup / 4] >> 8 * (kGroup % 4) & 255u;
        return bits_float(e >= 2 ? (e - 1) << 23 : 0x00200000u << e);  // 2^(e - 128)
    } else {
        return half_of(registers.scale[4 * r + kGroup / 2], kGroup % 2);
    }
}
template <TileFormat F, int kGroup>
DEVICE float group_minimum(const SideRegisters<F> &registers, int r) {
    return half_of(registers.scale2[4 * r + kGroup / 2], kGroup % 2);
}

// Integer scales and minimums of row r, unpacked four groups to a word (bytes, low first; int8, of IQ4_XS with 32 added), and
// their float factors.
template <TileFormat F>
struct IntegerScales {
    static constexpr int kWords = has_groups_of_16(F) ? 4 : 2;
    uint32_t scale[kWords], minimum[has_minimum(F) ? kWords : 1];
    float d, dmin;

    // The scale of group kGroup (of 16 or 32 weights).
    template <int kGroup>
    DEVICE int32_t integer() const {
        constexpr auto kByte = static_cast<uint32_t>(kGroup % 4);
        constexpr bool kSigned = F == TileFormat::Q6_K || F == TileFormat::Q3_K;
        // In the upper bytes zeros, or (+ 8) copies of the sign.
        if constexpr (kSigned)
            return static_cast<int32_t>(prmt_signs(scale[kGroup / 4], 0, kByte * 0x1111u + 0x8880u));
        else
            return static_cast<int32_t>(prmt(scale[kGroup / 4], 0, 0x4440u + kByte));
    }
    // Their sum.
    DEVICE int32_t sum() const {
        int32_t all = 0;
#pragma unroll
        for (int i = 0; i < kWords; ++i) all = dp4a(scale[i], 0x01010101u, all);
        return all;
    }
    // d times the scale, which is exact: a byte under the bits of 2^23 reads as 2^23 + byte.
    template <int kGroup>
    DEVICE float factor() const {
        static_assert(F == TileFormat::IQ4_XS);
        const float byte =
            bits_float(prmt(scale[kGroup / 4], 0x4b000000u, 0x7440u + static_cast<uint32_t>(kGroup % 4)));
        return d * (byte - (0x1p23f + 32));
    }
    // The minimums of groups k and k + 1, k = 8 * kHalf + 2t, as binary16 numbers.
    template <int kHalf>
    DEVICE uint32_t minimums(int t) const {
        const uint32_t pair =
            prmt(minimum[2 * kHalf], minimum[2 * kHalf + 1], static_cast<uint32_t>(2 * t | (2 * t + 1) << 8));
        return h2_sub(and_or(pair, twice(0xffu), twice(0x6400u)), twice(0x6400u));
    }
};

// One nibble per byte: moves bits [4i, 4i + 4) of `word` to byte i, for i < 4.
DEVICE uint32_t spread_nibbles(uint32_t word) {
    const uint32_t pairs = (word & 0xffu) | (word & 0xff00u) << 8;
    return (pairs & 0x000f000fu) | (pairs & 0x00f000f0u) << 4;
}
// Two bits per byte: moves bits [2i, 2i + 2) of `word` to byte i, for i < 4.
DEVICE uint32_t spread_pairs(uint32_t word) {
    return (word & 3u) | (word & 12u) << 6 | (word & 48u) << 12 | (word & 192u) << 18;
}

// Four bytes 0..63, each minus 32.
DEVICE uint32_t int8_of_6_bits(uint32_t bytes) {
    return (bytes + 0x60606060u) ^ 0x80808080u;
}

template <TileFormat F>
DEVICE void unpack_scales(const SideRegisters<F> &r, int row, IntegerScales<F> &out) {
    if constexpr (has_codebook(F)) {
        constexpr int kWords = IntegerScales<F>::kWords / 2;
#pragma unroll
        for (int i = 0; i < 2 * kWords; ++i)
            out.scale[i] =
                2 * spread_nibbles(r.scale[kWords * row + i / 2] >> 16 * (i % 2) & 0xffffu) + 0x01010101u;
        // Codebook entries are the file's weights times 4 (IQ3_XXS), 1 (IQ3_S) or 8 (the others).
        constexpr float kUnit = F == TileFormat::IQ3_S ? 1.0f : F == TileFormat::IQ3_XXS ? 0.25f : 0.125f;
        out.d = half_of(r.scale2[0], row) * kUnit;
    } else if constexpr (F == TileFormat::Q4_K || F == TileFormat::Q5_K) {
        const uint32_t d = r.scale[4 * row], low = r.scale[4 * row + 1], mid = r.scale[4 * row + 2],
                       high = r.scale[4 * row + 3];
        out.d = half_of(d, 0), out.dmin = half_of(d, 1);
        out.scale[0] = low & 0x3f3f3f3fu;
        out.scale[1] = (high & 0x0f0f0f0fu) | (low >> 2 & 0x30303030u);
        out.minimum[0] = mid & 0x3f3f3f3fu;
        out.minimum[1] = (high >> 4 & 0x0f0f0f0fu) | (mid >> 2 & 0x30303030u);
    } else if constexpr (F == TileFormat::Q2_K) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            out.scale[i] = r.scale[4 * row + i] & 0x0f0f0f0fu;
            out.minimum[i] = r.scale[4 * row + i] >> 4 & 0x0f0f0f0fu;
        }
        out.d = half_of(r.scale2[row], 0), out.dmin = half_of(r.scale2[row], 1);
    } else if constexpr (F == TileFormat::Q3_K) {
        const uint32_t high = r.scale[3 * row + 2];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            out.scale[i] = int8_of_6_bits((r.scale[3 * row + i % 2] >> i / 2 * 4 & 0x0f0f0f0fu) |
                                          (high >> 2 * i & 0x03030303u) << 4);
        out.d = half_of(r.scale2[0], row);
    } else if constexpr (F == TileFormat::Q6_K) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out.scale[i] = r.scale[4 * row + i];
        out.d = half_of(r.scale2[0], row);
    } else {  // IQ4_XS
        const uint32_t low = r.scale[row], high = r.scale[2] >> 16 * row;
        out.scale[0] = spread_nibbles(low) | spread_pairs(high) << 4;
        out.scale[1] = spread_nibbles(low >> 16) | spread_pairs(high >> 8) << 4;
        out.d = half_of(r.scale[3], row);
    }
}

// The scales of a block, of rows g and g + 8: integers (`rows`) or one float per group (`side`).
template <TileFormat F>
struct BlockScales {
    IntegerScales<F> rows[2];
    const SideRegisters<F> &side;

    explicit DEVICE BlockScales(const SideRegisters<F> &from) : side(from) {
        if constexpr (!has_group_floats(F)) {
            unpack_scales(from, 0, rows[0]);
            unpack_scales(from, 1, rows[1]);
        }
    }
    // The factor of the sum of group kGroup (of 16 or 32 weights) in row g + 8r: its scale, without d.
    template <int kGroup>
    DEVICE auto factor(int r) const {
        if constexpr (has_integer_sums(F))
            return rows[r].template integer<kGroup>();
        else if constexpr (has_group_floats(F))
            return group_scale<F, kGroup>(side, r);
        else
            return rows[r].template factor<kGroup>();
    }
};

// The sum of a block, for one row and token, without d and minimums (linear.h: step 2).
template <TileFormat F>
struct BlockSum {
    static constexpr bool kInteger = has_integer_sums(F);
    using Number = std::conditional_t<kInteger, int32_t, float>;
    Number sum = 0;

    // Adds a group of 16 or 32 columns. Integers may wrap in between; the final sum fits.
    DEVICE void add(Number scale, Number products) {
        if constexpr (kInteger)
            sum = static_cast<int32_t>(static_cast<uint32_t>(scale) * static_cast<uint32_t>(products) +
                                       static_cast<uint32_t>(sum));
        else
            sum = fma_rn(scale, products, sum);
    }
    // Adds it, divided by 2^kShift, which leaves an integer, to `all`, and clears it.
    template <int kShift>
    DEVICE void shift_back(BlockSum &all) {
        if constexpr (kInteger) all.sum += sum >> kShift;
        sum = 0;
    }
    // b before minimums.
    DEVICE float value(const BlockScales<F> &scales, int r) const {
        if constexpr (kInteger)
            return scales.rows[r].d * static_cast<float>(sum);
        else
            return sum;
    }
};

// Sums of binary16 products of integers, as an mma leaves them. Where they are added to as integers, an mma starts at 1.5 *
// 2^23. Its result is then the float32 whose bits are kBits + sum, for sums below 2^22: these bits are multiplied by the
// group's scale as they are, and the block starts at -kBits times the sum of its scales.
template <TileFormat F>
struct HalfProducts {
    static constexpr bool kInteger = has_integer_sums(F);
    static constexpr float kStart = kInteger ? 0x1.8p23f : 0.0f;
    static constexpr uint32_t kBits = 0x4b400000u;

    static DEVICE BlockSum<F> start(const BlockScales<F> &scales, int r) {
        if constexpr (kInteger)
            return {static_cast<int32_t>(0u - kBits * static_cast<uint32_t>(scales.rows[r].sum()))};
        else
            return {};
    }
    static DEVICE auto of(float c) {
        if constexpr (kInteger)
            return static_cast<int32_t>(float_bits(c));
        else
            return c;
    }
};

// For formats with integer scales: adds to c (initially 0) the sums of minimum * sum(q) over a block, in the
// order of linear.h, for rows g and g + 8 of two tokens. sums(part, half) is operand B: the first or second
// part of the sums (activations.h) of groups k and k + 1, k = 8 * half + 2t.
template <TileFormat F, class Sums>
DEVICE void minimum_sums(const IntegerScales<F> (&rows)[2], const Sums &sums, float (&c)[4]) {
    const int t = lane_index() & 3;
    const uint32_t a[2] = {rows[0].template minimums<0>(t), rows[1].template minimums<0>(t)};
    if constexpr (has_groups_of_16(F)) {
        const uint32_t more[2] = {rows[0].template minimums<1>(t), rows[1].template minimums<1>(t)};
        mma_f16_k16(c, {a[0], a[1], more[0], more[1]},
                    {sums(Constant<0>(), Constant<0>()), sums(Constant<0>(), Constant<1>())});
        mma_f16_k16(c, {a[0], a[1], more[0], more[1]},
                    {sums(Constant<1>(), Constant<0>()), sums(Constant<1>(), Constant<1>())});
    } else {
        // Each part is summed by itself, exactly; together they may need 26 bits, and float32 has 24.
        float low[4] = {};
        mma_f16_k8(c, a, sums(Constant<0>(), Constant<0>()));
        mma_f16_k8(low, a, sums(Constant<1>(), Constant<0>()));
#pragma unroll
        for (int i = 0; i < 4; ++i) c[i] = c[i] + low[i];
    }
}

}  // namespace runnel::kernels::cuda
