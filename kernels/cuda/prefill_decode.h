// One block of 16 x 256 weights (tiles.h) -> int8 operands A and scales as 32-bit numbers in shared memory:
// done once for all tokens of a block of linear_prefill.cu.
#pragma once

#include <cstdint>

#include "kernels/cuda/fragments.h"
#include "kernels/cuda/linear_prefill.h"

namespace runnel::kernels::cuda {

// What the multiplication has to know of a format; its loops are compiled once for each combination in use.
struct PrefillClass {
    bool group_floats;  // a float scale per group of weights; else integer scales and a float per 256
    bool groups_of_16;  // else of 32
    bool minimum;
    bool codebook;
    constexpr bool operator==(const PrefillClass &) const = default;
};
constexpr PrefillClass prefill_class(TileFormat f) {
    return {has_group_floats(f), has_groups_of_16(f), has_minimum(f), has_codebook(f)};
}

// The weights of a block, row tile by row tile. Scales lie as a lane reads them: {row g, row g + 8}.
template <PrefillClass C>
struct DecodedWeights {
    static constexpr int kScales = C.groups_of_16 ? 16 : 8;
    uint4 codes[kPrefillTiles][8][32];                  // operand A of each group of 32 columns, by lane
    uint32_t scale[kScales][kPrefillTiles][8][2];       // int32, or float with group_floats
    float d[C.group_floats ? 1 : kPrefillTiles][8][2];  // of the block
    float dmin[C.group_floats || !C.minimum ? 1 : kPrefillTiles][8][2];
    // Of integer scales: bytes, four groups to a word, 16 groups (the upper ones 0 where there are 8).
    uint32_t minimum[C.group_floats || !C.minimum ? 1 : kPrefillTiles][2][8][4];
    float group_minimum[C.group_floats && C.minimum ? 8 : 1][kPrefillTiles][8][2];
};

// Codes less their offset, each byte by itself: both are below 128.
template <TileFormat F>
DEVICE uint32_t signed_codes(uint32_t codes) {
    if constexpr (code_offset(F) == 0) return codes;
    constexpr uint32_t kHigh = 0x80808080u, kOffset = 0x01010101u * static_cast<uint32_t>(code_offset(F));
    return ((codes | kHigh) - kOffset) ^ kHigh;
}

template <TileFormat F, int kC>
DEVICE void decode_chunk(const MainRegisters<F> &main, const SideRegisters<F> &side, const Book<F> &book,
                         uint4 (&to)[8][32]) {
    uint32_t later[4] = {}, a[4];
    fragment<F, kC, 0>(main, side, book, a, later);
    st128(&to[2 * kC][lane_index()],
          {signed_codes<F>(a[0]), signed_codes<F>(a[1]), signed_codes<F>(a[2]), signed_codes<F>(a[3])});
    fragment<F, kC, 1>(main, side, book, a, later);
    st128(&to[2 * kC + 1][lane_index()],
          {signed_codes<F>(a[0]), signed_codes<F>(a[1]), signed_codes<F>(a[2]), signed_codes<F>(a[3])});
}

// The four lanes of a row pair share its scales: lane t writes a quarter of the groups.
template <TileFormat F, PrefillClass C, int kGroup>
DEVICE void decode_group_floats(const SideRegisters<F> &side, int tile, DecodedWeights<C> &to) {
    const int g = lane_index() >> 2, t = lane_index() & 3;
    constexpr int kScales = DecodedWeights<C>::kScales;
    if constexpr (kGroup < kScales) {
        if (kGroup / (kScales / 4) == t)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                to.scale[kGroup][tile][g][r] = float_bits(group_scale<F, kGroup>(side, r));
                if constexpr (C.minimum)
                    to.group_minimum[kGroup][tile][g][r] = cuda::group_minimum<F, kGroup>(side, r);
            }
        decode_group_floats<F, C, kGroup + 1>(side, tile, to);
    }
}

template <TileFormat F, PrefillClass C, int kGroup>
DEVICE void decode_integers(const IntegerScales<F> &scales, int tile, int r, DecodedWeights<C> &to) {
    const int g = lane_index() >> 2, t = lane_index() & 3;
    constexpr int kScales = DecodedWeights<C>::kScales;
    if constexpr (kGroup < kScales) {
        if (kGroup / (kScales / 4) == t)
            to.scale[kGroup][tile][g][r] = static_cast<uint32_t>(scales.template scale_of<kGroup>());
        decode_integers<F, C, kGroup + 1>(scales, tile, r, to);
    }
}

template <TileFormat F, PrefillClass C>
DEVICE void decode_scales(const SideRegisters<F> &side, int tile, DecodedWeights<C> &to) {
    const int g = lane_index() >> 2, t = lane_index() & 3;
    if constexpr (C.group_floats) {
        decode_group_floats<F, C, 0>(side, tile, to);
    } else {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            IntegerScales<F> scales;
            unpack_scales(side, r, scales);
            decode_integers<F, C, 0>(scales, tile, r, to);
            if (t == r) to.d[tile][g][r] = scales.d;
            if constexpr (C.minimum) {
                if (t == r) to.dmin[tile][g][r] = scales.dmin;
                if (t == 2 + r) {
                    uint4 words = {scales.minimum[0], scales.minimum[1], 0, 0};
                    if constexpr (C.groups_of_16) words.z = scales.minimum[2], words.w = scales.minimum[3];
                    st128(to.minimum[tile][r][g], words);
                }
            }
        }
    }
}

// A warp decodes a tile. block: the bytes of the file's planes, in shared memory; chunks: those it has;
// words: the format's book, if it has one.
template <TileFormat F, PrefillClass C>
DEVICE void decode_tile(const std::byte *block, int chunks, int tile, const uint32_t *words,
                        DecodedWeights<C> &to) {
    static_assert(prefill_class(F) == C);
    Book<F> book;
    if constexpr (has_codebook(F)) book = Book<F>(words);
    MainRegisters<F> main;
    SideRegisters<F> side;
    load_side<F, CachedWeights>(block, side);
    const auto chunk = [&](auto index) {
        constexpr int kC = decltype(index)::value;
        if (kC >= chunks) return;
        // Formats that keep two chunks in a load bring the second, which may be one of padding, with it.
        if constexpr (has_pairs(F))
            load_chunk<F, kC / 2 * 2 + 1, CachedWeights>(block, main);
        else
            load_chunk<F, kC, CachedWeights>(block, main);
        decode_chunk<F, kC>(main, side, book, to.codes[tile]);
    };
    chunk(Constant<0>());
    chunk(Constant<1>());
    chunk(Constant<2>());
    chunk(Constant<3>());
    decode_scales<F, C>(side, tile, to);
}

}  // namespace runnel::kernels::cuda
