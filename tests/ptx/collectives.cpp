// The collectives of a warp: shfl, vote, bar.warp.sync, ldmatrix and mma (PTX ISA 9.7.9, 9.7.13, 9.7.14). They
// run when all lanes have arrived.
#include <algorithm>
#include <cstring>

#include "tests/ptx/numbers.h"
#include "tests/ptx/operations.h"

namespace runnel::ptx {

namespace {

void expect_full_mask(Warp &w, const Step &s, size_t input) {
    w.for_lanes([&](int lane) {
        if (w.row<uint32_t>(s.s[input])[lane] != kAllLanes) throw Error("a member mask without all lanes");
    });
}

// --- shfl --------------------------------------------------------------------------------------------------

enum class Mode { Up, Down, Bfly, Idx };

template <Mode kMode>
void run_shuffle(Warp &w, const Step &s) {
    expect_full_mask(w, s, 3);
    std::array<uint32_t, kLanes> from;
    std::copy_n(w.row<uint32_t>(s.s[0]), kLanes, from.begin());
    w.for_lanes([&](int lane) {
        const uint32_t b = w.row<uint32_t>(s.s[1])[lane] & 31u, c = w.row<uint32_t>(s.s[2])[lane];
        const auto clamp = static_cast<int>(c & 31u), segments = static_cast<int>(c >> 8 & 31u);
        const int last = (lane & segments) | (clamp & ~segments), first = lane & segments;
        const int n = static_cast<int>(b);
        int j = 0;
        bool in_range = false;
        if constexpr (kMode == Mode::Up) j = lane - n, in_range = j >= last;
        if constexpr (kMode == Mode::Down) j = lane + n, in_range = j <= last;
        if constexpr (kMode == Mode::Bfly) j = lane ^ n, in_range = j <= last;
        if constexpr (kMode == Mode::Idx) j = first | (n & ~segments), in_range = j <= last;
        w.row<uint32_t>(s.d[0])[lane] = from[static_cast<size_t>(in_range ? j : lane)];
        if (s.outputs > 1) w.row<uint32_t>(s.d[1])[lane] = in_range;
    });
}

template <Mode kMode>
void add_shuffle(Operations &all, const std::string &mode) {
    all.add("shfl.sync." + mode + ".b32", {run_shuffle<kMode>, [](Binder &b, Step &s) {
                                               s.kind = Step::Kind::Collective;
                                               if (b.parts(0) == 2)
                                                   b.shuffle_outputs(0);
                                               else
                                                   b.output(0, 32);
                                               for (size_t i = 1; i <= 4; ++i) b.input(i, 32);
                                           }});
}

// --- vote --------------------------------------------------------------------------------------------------

uint32_t votes(Warp &w, const Step &s) {
    expect_full_mask(w, s, 1);
    uint32_t yes = 0;
    for (int lane = 0; lane < kLanes; ++lane) yes |= (w.row<uint32_t>(s.s[0])[lane] & 1u) << lane;
    return yes;
}

template <auto F, int kBits>
void add_vote(Operations &all, const std::string &spelling) {
    all.add(spelling, {[](Warp &w, const Step &s) {
                           const uint32_t result = F(votes(w, s));
                           std::fill_n(w.row<uint32_t>(s.d[0]), kLanes, result);
                       },
                       [](Binder &b, Step &s) {
                           s.kind = Step::Kind::Collective;
                           b.output(0, kBits), b.input(1, 1), b.input(2, 32);
                       }});
}

// --- matrices ----------------------------------------------------------------------------------------------

// Lanes 8 m to 8 m + 7 hold the addresses of the rows of matrix m, 8 16-bit values each. Register m of lane l gets
// row l / 4, columns 2 (l mod 4) (low half) and 2 (l mod 4) + 1; with kTransposed, of the transposed matrix.
template <size_t kMatrices, bool kTransposed>
void run_ldmatrix(Warp &w, const Step &s) {
    uint16_t values[kMatrices][8][8];
    for (w.lane = 0; w.lane < static_cast<int>(8 * kMatrices); ++w.lane) {
        const auto address = static_cast<uint32_t>(w.input(s, 0, w.lane) + static_cast<uint64_t>(s.offset));
        auto &row = values[w.lane / 8][w.lane % 8];
        std::memcpy(row, w.memory.shared_at(address, sizeof row), sizeof row);
    }
    w.for_lanes([&](int lane) {
        const int row = lane / 4, column = 2 * (lane % 4);
        for (size_t m = 0; m < kMatrices; ++m) {
            const auto &v = values[m];
            const uint32_t low = kTransposed ? v[column][row] : v[row][column];
            const uint32_t high = kTransposed ? v[column + 1][row] : v[row][column + 1];
            w.row<uint32_t>(s.d[m])[lane] = high << 16 | low;
        }
    });
}

template <size_t kMatrices, bool kTransposed>
void add_ldmatrix(Operations &all, const std::string &form) {
    all.add("ldmatrix.sync.aligned.m8n8." + form + ".shared.b16",
            {run_ldmatrix<kMatrices, kTransposed>, [](Binder &b, Step &s) {
                 s.kind = Step::Kind::Collective;
                 b.outputs(0, kMatrices, 32);
                 b.address(1, Binder::Space::Shared);
             }});
}

float half_at(uint32_t pair, size_t i, bool is_bf16) {
    const auto bits = static_cast<uint16_t>(pair >> (16 * i));
    return is_bf16 ? from_bf16(bits) : from_f16(bits);
}

// D = A B + C of 16 x kDepth, kDepth x 8 and 16 x 8. With group g = lane / 4 and thread t = lane mod 4, element i
// (two to a register, low half first) of
//   A is at row g, or g + 8 if i mod 4 >= 2, column 2 t + i mod 2, + 8 if i >= 4;
//   B is at row 2 t + i mod 2, + 8 if i >= 2, column g;
//   C and D is at row g, or g + 8 if i >= 2, column 2 t + i mod 2.
// Products are exact. The ISA does not specify the rounding of sums: here products are added to C in the
// order of A's columns, and each sum is rounded to nearest.
template <size_t kDepth, bool kBf16>
void run_mma(Warp &w, const Step &s) {
    constexpr size_t kA = kDepth / 4, kB = kDepth / 8;  // registers
    float a[16][kDepth], b[kDepth][8], d[16][8];
    for (size_t lane = 0; lane < kLanes; ++lane) {
        const size_t g = lane / 4, t = lane % 4;
        for (size_t i = 0; i < 2 * kA; ++i)
            a[g + (i % 4 >= 2 ? 8 : 0)][2 * t + i % 2 + (i >= 4 ? 8 : 0)] =
                half_at(w.row<uint32_t>(s.s[i / 2])[lane], i % 2, kBf16);
        for (size_t i = 0; i < 2 * kB; ++i)
            b[2 * t + i % 2 + (i >= 2 ? 8 : 0)][g] =
                half_at(w.row<uint32_t>(s.s[kA + i / 2])[lane], i % 2, kBf16);
        for (size_t i = 0; i < 4; ++i)
            d[g + (i >= 2 ? 8 : 0)][2 * t + i % 2] =
                std::bit_cast<float>(w.row<uint32_t>(s.s[kA + kB + i])[lane]);
    }
    for (auto &row : d) {
        const auto &factors = a[&row - d];
        for (size_t k = 0; k < kDepth; ++k)
            for (size_t n = 0; n < 8; ++n) row[n] += factors[k] * b[k][n];
    }
    for (size_t lane = 0; lane < kLanes; ++lane)
        for (size_t i = 0; i < 4; ++i)
            w.row<uint32_t>(s.d[i])[lane] =
                std::bit_cast<uint32_t>(canonical(d[lane / 4 + (i >= 2 ? 8 : 0)][2 * (lane % 4) + i % 2]));
}

template <size_t kDepth, bool kBf16>
void add_mma(Operations &all) {
    const std::string type = kBf16 ? "bf16" : "f16";
    all.add("mma.sync.aligned.m16n8k" + std::to_string(kDepth) + ".row.col.f32." + type + "." + type + ".f32",
            {run_mma<kDepth, kBf16>, [](Binder &b, Step &s) {
                 s.kind = Step::Kind::Collective;
                 b.outputs(0, 4, 32);
                 b.inputs(1, kDepth / 4, 32), b.inputs(2, kDepth / 8, 32), b.inputs(3, 4, 32);
             }});
}

// D = A B + C of bytes, A of type Left and B of int8, exact but for overflow, which wraps, of 16 x kDepth, kDepth x 8 and
// 16 x 8. Element i (four to a register, low byte first) of
//   A is at row g, or g + 8 if i mod 8 >= 4, column 4 t + i mod 4, + 16 if i >= 8;
//   B is at row 4 t + i mod 4, + 16 if i >= 4, column g;
//   C and D as above.
template <size_t kDepth, class Left>
void run_mma_bytes(Warp &w, const Step &s) {
    constexpr size_t kA = kDepth / 8, kB = kDepth / 16;  // registers
    int32_t a[16][kDepth], b[kDepth][8];
    uint32_t d[16][8];
    const auto byte_at = [&](size_t place, size_t lane, size_t i) {
        return static_cast<uint8_t>(w.row<uint32_t>(s.s[place + i / 4])[lane] >> (8 * (i % 4)));
    };
    for (size_t lane = 0; lane < kLanes; ++lane) {
        const size_t g = lane / 4, t = lane % 4;
        for (size_t i = 0; i < 4 * kA; ++i)
            a[g + (i % 8 >= 4 ? 8 : 0)][4 * t + i % 4 + (i >= 8 ? 16 : 0)] =
                static_cast<Left>(byte_at(0, lane, i));
        for (size_t i = 0; i < 4 * kB; ++i)
            b[4 * t + i % 4 + (i >= 4 ? 16 : 0)][g] = static_cast<int8_t>(byte_at(kA, lane, i));
        for (size_t i = 0; i < 4; ++i)
            d[g + (i >= 2 ? 8 : 0)][2 * t + i % 2] = w.row<uint32_t>(s.s[kA + kB + i])[lane];
    }
    for (size_t row = 0; row < 16; ++row)
        for (size_t k = 0; k < kDepth; ++k)
            for (size_t n = 0; n < 8; ++n) d[row][n] += static_cast<uint32_t>(a[row][k] * b[k][n]);
    for (size_t lane = 0; lane < kLanes; ++lane)
        for (size_t i = 0; i < 4; ++i)
            w.row<uint32_t>(s.d[i])[lane] = d[lane / 4 + (i >= 2 ? 8 : 0)][2 * (lane % 4) + i % 2];
}

template <size_t kDepth, class Left>
void add_mma_bytes(Operations &all) {
    const std::string left = std::is_signed_v<Left> ? "s8" : "u8";
    all.add("mma.sync.aligned.m16n8k" + std::to_string(kDepth) + ".row.col.s32." + left + ".s8.s32",
            {run_mma_bytes<kDepth, Left>, [](Binder &b, Step &s) {
                 s.kind = Step::Kind::Collective;
                 b.outputs(0, 4, 32);
                 b.inputs(1, kDepth / 8, 32), b.inputs(2, kDepth / 16, 32), b.inputs(3, 4, 32);
             }});
}

}  // namespace

void add_collectives(Operations &all) {
    add_shuffle<Mode::Up>(all, "up"), add_shuffle<Mode::Down>(all, "down");
    add_shuffle<Mode::Bfly>(all, "bfly"), add_shuffle<Mode::Idx>(all, "idx");
    add_vote<[](uint32_t yes) -> uint32_t { return yes; }, 32>(all, "vote.sync.ballot.b32");
    add_vote<[](uint32_t yes) -> uint32_t { return yes == kAllLanes; }, 1>(all, "vote.sync.all.pred");
    add_vote<[](uint32_t yes) -> uint32_t { return yes != 0; }, 1>(all, "vote.sync.any.pred");
    all.add("bar.warp.sync", {[](Warp &w, const Step &s) { expect_full_mask(w, s, 0); },
                              [](Binder &b, Step &s) {
                                  s.kind = Step::Kind::Collective;
                                  b.input(0, 32);
                              }});
    add_ldmatrix<4, false>(all, "x4"), add_ldmatrix<4, true>(all, "x4.trans");
    add_ldmatrix<2, false>(all, "x2"), add_ldmatrix<2, true>(all, "x2.trans");
    add_mma<16, false>(all), add_mma<16, true>(all), add_mma<8, false>(all), add_mma<8, true>(all);
    add_mma_bytes<16, int8_t>(all), add_mma_bytes<32, int8_t>(all), add_mma_bytes<32, uint8_t>(all);
}

}  // namespace runnel::ptx
