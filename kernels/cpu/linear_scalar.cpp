// The reference implementation of the bit-equality contract (README.md): plain loops, one float operation per
// line of the contract. Also the kernels of a CPU without AVX2.
#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "gguf/half.h"
#include "gguf/nvfp4.h"
#include "kernels/cpu/linear_grid.h"
#include "kernels/cpu/linear_isa.h"
#include "kernels/cpu/linear_packed.h"

namespace runnel::kernels::cpu {

using gguf::Type;

namespace {

// 2^(e - 128)
float from_e8m0_half(uint8_t e) {
    return e < 2 ? std::bit_cast<float>(0x00200000u << e)
                 : std::bit_cast<float>(static_cast<uint32_t>(e - 1) << 23);
}

template <typename Block>
Block load(const std::byte *p) {
    Block block;
    std::memcpy(&block, p, sizeof block);
    return block;
}

// --- packing ---------------------------------------------------------------------------------------------

using Partials = float[8];

float fold(const Partials &p) {
    return ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]));
}

// The fit of x by q = rint(x * inverse): least squares gives x * unit ~ slope * q, and a larger
// score means a smaller error.
struct Fit {
    float inverse, slope, score;
};

Fit fit(const float *x, int count, float unit, float inverse) {
    Partials a = {}, b = {};
    for (int i = 0; i < count; ++i) {
        const float u = x[i] * unit, q = std::nearbyint(x[i] * inverse);
        a[i % 8] = std::fma(u, q, a[i % 8]);
        b[i % 8] = std::fma(q, q, b[i % 8]);
    }
    const float uq = fold(a), qq = fold(b);
    return {inverse, uq / qq, uq * uq / qq};
}

// Quantizes `count` values to int8 with one scale; see README.md, step 1.
float quantize_group(const float *x, int count, int8_t *q) {
    uint32_t amax_bits = 0;
    for (int i = 0; i < count; ++i)
        amax_bits = std::max(amax_bits, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
    const float amax = std::bit_cast<float>(amax_bits);
    std::fill_n(q, count, int8_t{0});
    if (amax_bits >= 0x7f800000u) return std::numeric_limits<float>::quiet_NaN();
    if (amax < kTinyActivation) return 0;
    const float unit = 127.0f / amax;
    Fit best = fit(x, count, unit, unit);
    for (float largest : {126.0f, 125.0f, 124.0f})
        if (const Fit f = fit(x, count, unit, largest / amax); f.score > best.score) best = f;
    for (int i = 0; i < count; ++i) q[i] = static_cast<int8_t>(std::nearbyint(x[i] * best.inverse));
    return best.slope * (amax / 127.0f);
}

int sum(const int8_t *q, int count) {
    int s = 0;
    for (int i = 0; i < count; ++i) s += q[i];
    return s;
}

void pack_record(const float *x, int64_t count, PackedF32 &record) {
    std::fill_n(record.x, kRecordCols, 0.0f);
    std::copy_n(x, count, record.x);
}

void pack_record(const float *x, int64_t count, PackedQ8x32 &record) {
    std::memset(&record, 0, sizeof record);
    for (int g = 0; g < count / 32; ++g) {
        record.scale[g] = quantize_group(x + 32 * g, 32, record.q + 32 * g);
        const int s = sum(record.q + 32 * g, 32);
        record.start[g] = -128 * s;
        record.half[g] = -128 * sum(record.q + 32 * g, 16);
        record.scaled_sum[g] = record.scale[g] * static_cast<float>(s);
    }
}

void pack_record(const float *x, int64_t, PackedQ8x256 &record) {
    std::memset(&record, 0, sizeof record);
    record.scale = quantize_group(x, kRecordCols, record.q);
    for (int s = 0; s < 16; ++s) {
        const int sum16 = sum(record.q + 16 * s, 16);
        record.sum16[s] = static_cast<int16_t>(sum16);
        record.start16[start16_index(s)] = -128 * sum16;
    }
    for (int g = 0; g < 8; ++g) {
        const int sum32 = sum(record.q + 32 * g, 32);
        record.sum32[g] = static_cast<int16_t>(sum32);
        record.start32[g] = -128 * sum32;
    }
}

template <typename Record>
void pack_as(const float *x, int64_t x_stride, int64_t cols, int32_t tokens, int32_t t0, int32_t t1,
             int64_t col0, int64_t col1, void *packed) {
    Record *records = static_cast<Record *>(packed);
    for (int64_t col = col0; col < col1; col += kRecordCols)
        for (int64_t t = t0; t < t1; ++t)
            pack_record(x + t * x_stride + col, std::min<int64_t>(kRecordCols, cols - col),
                        records[col / kRecordCols * tokens + t]);
}

void pack(ActFormat format, const float *x, int64_t x_stride, int64_t cols, int32_t tokens, int32_t t0,
          int32_t t1, int64_t col0, int64_t col1, void *packed) {
    assert(col0 % kRecordCols == 0 && (col1 % kRecordCols == 0 || col1 == cols));
    switch (format) {
        case ActFormat::F32:
            return pack_as<PackedF32>(x, x_stride, cols, tokens, t0, t1, col0, col1, packed);
        case ActFormat::Q8x32:
            return pack_as<PackedQ8x32>(x, x_stride, cols, tokens, t0, t1, col0, col1, packed);
        case ActFormat::Q8x256:
            return pack_as<PackedQ8x256>(x, x_stride, cols, tokens, t0, t1, col0, col1, packed);
    }
}

// --- blocks to integers ----------------------------------------------------------------------------------

// value = d * q + m
struct Group32 {
    float d, m;
    int q[32];
};

// value = d[k / 16] * q[k]
struct Halves32 {
    float d[2];
    int q[32];
};

// value = d * scale[k / 16] * q[k] - dmin * minimum[k / 16]
struct Group256 {
    float d, dmin;
    int scale[16], minimum[16];
    int q[256];
};

template <typename Map>
void nibbles(const uint8_t (&qs)[16], int (&q)[32], Map map) {
    for (int i = 0; i < 16; ++i) {
        q[i] = map(qs[i] & 15, i);
        q[i + 16] = map(qs[i] >> 4, i + 16);
    }
}

void unpack(const gguf::BlockQ4_0 &b, Group32 &g) {
    g.d = gguf::f16_to_f32(b.d);
    nibbles(b.qs, g.q, [](int q, int) { return q - 8; });
}

void unpack(const gguf::BlockQ4_1 &b, Group32 &g) {
    g.d = gguf::f16_to_f32(b.d);
    g.m = gguf::f16_to_f32(b.m);
    nibbles(b.qs, g.q, [](int q, int) { return q; });
}

int high_bit(const uint8_t (&qh)[4], int i) {
    return (qh[i / 8] >> (i % 8) & 1) << 4;
}

void unpack(const gguf::BlockQ5_0 &b, Group32 &g) {
    g.d = gguf::f16_to_f32(b.d);
    nibbles(b.qs, g.q, [&](int q, int i) { return (q | high_bit(b.qh, i)) - 16; });
}

void unpack(const gguf::BlockQ5_1 &b, Group32 &g) {
    g.d = gguf::f16_to_f32(b.d);
    g.m = gguf::f16_to_f32(b.m);
    nibbles(b.qs, g.q, [&](int q, int i) { return q | high_bit(b.qh, i); });
}

void unpack(const gguf::BlockQ8_0 &b, Group32 &g) {
    g.d = gguf::f16_to_f32(b.d);
    for (int i = 0; i < 32; ++i) g.q[i] = b.qs[i];
}

void unpack(const gguf::BlockIQ4_NL &b, Group32 &g) {
    g.d = gguf::f16_to_f32(b.d);
    nibbles(b.qs, g.q, [](int q, int) { return gguf::kIQ4Values[q]; });
}

void unpack(const gguf::BlockMXFP4 &b, Group32 &g) {
    g.d = from_e8m0_half(b.e);
    nibbles(b.qs, g.q, [](int q, int) { return gguf::kMXFP4Values[q]; });
}

// Weights 32 half ... 32 half + 31.
void unpack(const gguf::BlockNVFP4 &b, int half, Halves32 &g) {
    for (int s = 0; s < 2; ++s) g.d[s] = gguf::ue4m3_to_f32(b.d[2 * half + s]) * 0.5f;
    for (int k = 0; k < 32; ++k)
        g.q[k] = gguf::kMXFP4Values[b.qs[16 * half + k / 16 * 8 + k % 8] >> (k / 8 % 2 * 4) & 15];
}

// Weights 32 part ... 32 part + 31.
void unpack(const gguf::BlockQ1_0 &b, int part, Group32 &g) {
    g.d = gguf::f16_to_f32(b.d);
    for (int k = 0; k < 32; ++k) g.q[k] = b.qs[4 * part + k / 8] >> (k % 8) & 1 ? 1 : -1;
}

template <typename Block>
requires std::is_same_v<Block, gguf::BlockQ2_0> || std::is_same_v<Block, gguf::BlockPQ2_0>
void unpack(const Block &b, int part, Group32 &g) {
    g.d = gguf::f16_to_f32(b.d);
    for (int k = 0; k < 32; ++k) g.q[k] = (b.qs[8 * part + k / 4] >> (k % 4 * 2) & 3) - 1;
}

// Trit n (0 is the most significant) of a byte that holds five trits as a fraction of 256.
int trit(uint8_t byte, int n) {
    constexpr int kPowers[] = {1, 3, 9, 27, 81};
    return (byte * kPowers[n] & 255) * 3 >> 8;
}

void unpack(const gguf::BlockPTQ1_0 &b, int part, Group32 &g) {
    g.d = gguf::f16_to_f32(b.d);
    for (int k = 0; k < 32; ++k) {
        const int i = 32 * part + k;
        g.q[k] = (i < 80    ? trit(b.qs[i % 16], i / 16)
                  : i < 120 ? trit(b.qs[16 + i % 8], (i - 80) / 8)
                            : trit(b.qh[i % 2], (i - 120) / 2)) -
                 1;
    }
}

void unpack(const gguf::BlockQ2_K &b, Group256 &g) {
    g.d = gguf::f16_to_f32(b.d);
    g.dmin = gguf::f16_to_f32(b.dmin);
    for (int s = 0; s < 16; ++s) {
        g.scale[s] = b.scales[s] & 15;
        g.minimum[s] = b.scales[s] >> 4;
    }
    for (int k = 0; k < 256; ++k) g.q[k] = b.qs[k / 128 * 32 + k % 32] >> (k / 32 % 4 * 2) & 3;
}

void unpack(const gguf::BlockQ3_K &b, Group256 &g) {
    g.d = gguf::f16_to_f32(b.d);
    for (int s = 0; s < 16; ++s) {
        const int low = b.scales[s % 8] >> (s / 8 * 4) & 15;
        const int high = b.scales[8 + s % 4] >> (s / 4 * 2) & 3;
        g.scale[s] = (low | high << 4) - 32;
    }
    for (int k = 0; k < 256; ++k) {
        const int low = b.qs[k / 128 * 32 + k % 32] >> (k / 32 % 4 * 2) & 3;
        const int high = b.hmask[k % 32] >> (k / 32) & 1;
        g.q[k] = (low | high << 2) - 4;
    }
}

// The 6-bit scales and minimums of Q4_K and Q5_K, eight of each in 12 bytes.
void unpack_scales(const uint8_t (&packed)[12], Group256 &g) {
    for (int j = 0; j < 8; ++j) {
        int scale, minimum;
        if (j < 4) {
            scale = packed[j] & 63;
            minimum = packed[j + 4] & 63;
        } else {
            scale = (packed[j + 4] & 15) | packed[j - 4] >> 6 << 4;
            minimum = packed[j + 4] >> 4 | packed[j] >> 6 << 4;
        }
        g.scale[2 * j] = g.scale[2 * j + 1] = scale;
        g.minimum[2 * j] = g.minimum[2 * j + 1] = minimum;
    }
}

void unpack(const gguf::BlockQ4_K &b, Group256 &g) {
    g.d = gguf::f16_to_f32(b.d);
    g.dmin = gguf::f16_to_f32(b.dmin);
    unpack_scales(b.scales, g);
    for (int k = 0; k < 256; ++k) g.q[k] = b.qs[k / 64 * 32 + k % 32] >> (k / 32 % 2 * 4) & 15;
}

void unpack(const gguf::BlockQ5_K &b, Group256 &g) {
    g.d = gguf::f16_to_f32(b.d);
    g.dmin = gguf::f16_to_f32(b.dmin);
    unpack_scales(b.scales, g);
    for (int k = 0; k < 256; ++k) {
        const int low = b.qs[k / 64 * 32 + k % 32] >> (k / 32 % 2 * 4) & 15;
        g.q[k] = low | (b.qh[k % 32] >> (k / 32) & 1) << 4;
    }
}

void unpack(const gguf::BlockQ6_K &b, Group256 &g) {
    g.d = gguf::f16_to_f32(b.d);
    for (int s = 0; s < 16; ++s) g.scale[s] = b.scales[s];
    for (int k = 0; k < 256; ++k) {
        const int low = b.ql[k / 128 * 64 + k % 64] >> (k / 64 % 2 * 4) & 15;
        const int high = b.qh[k / 128 * 32 + k % 32] >> (k / 32 % 4 * 2) & 3;
        g.q[k] = (low | high << 4) - 32;
    }
}

void unpack(const gguf::BlockIQ4_XS &b, Group256 &g) {
    g.d = gguf::f16_to_f32(b.d);
    for (int j = 0; j < 8; ++j) {
        const int low = b.scales_l[j / 2] >> (j % 2 * 4) & 15;
        const int high = b.scales_h >> (2 * j) & 3;
        g.scale[2 * j] = g.scale[2 * j + 1] = (low | high << 4) - 32;
    }
    for (int k = 0; k < 256; ++k) {
        const int nibble = b.qs[k / 32 * 16 + k % 16] >> (k / 16 % 2 * 4) & 15;
        g.q[k] = gguf::kIQ4Values[nibble];
    }
}

void unpack(const gguf::BlockTQ1_0 &b, Group256 &g) {
    g.d = gguf::f16_to_f32(b.d);
    std::fill_n(g.scale, 16, 1);
    for (int k = 0; k < 160; ++k) g.q[k] = trit(b.qs[k % 32], k / 32) - 1;
    for (int k = 0; k < 80; ++k) g.q[160 + k] = trit(b.qs[32 + k % 16], k / 16) - 1;
    for (int k = 0; k < 16; ++k) g.q[240 + k] = trit(b.qh[k % 4], k / 4) - 1;
}

void unpack(const gguf::BlockTQ2_0 &b, Group256 &g) {
    g.d = gguf::f16_to_f32(b.d);
    std::fill_n(g.scale, 16, 1);
    for (int k = 0; k < 256; ++k) g.q[k] = (b.qs[k / 128 * 32 + k % 32] >> (k / 32 % 4 * 2) & 3) - 1;
}

template <typename Block>
concept HasGrid = requires {
    GridBlock<Block>::kUnit;
};

// Weight k of group j, given the byte of its codebook entry.
template <HasGrid Block>
int grid_weight(const Block &b, int j, int k, int entry) {
    using Grid = GridBlock<Block>;
    const uint32_t signs = Grid::signs(b, j);
    if constexpr (Grid::kSigns == Signs::Shift) return 8 * (entry - 1) + (signs >> (k / 8) & 1 ? -1 : 1);
    const uint32_t eight = Grid::kSigns == Signs::Eight ? signs >> (k / 8 * 8) & 255
                                                        : gguf::eight_signs(signs >> (k / 8 * 7) & 127);
    return eight >> (k % 8) & 1 ? -entry : entry;
}

template <HasGrid Block>
void unpack(const Block &b, Group256 &g) {
    using Grid = GridBlock<Block>;
    g.d = gguf::f16_to_f32(Grid::scale_bits(b)) * Grid::kUnit;
    for (int s = 0; s < 16; ++s) g.scale[s] = Grid::scale(b, s);
    for (int k = 0; k < 256; ++k) {
        const int entry = static_cast<int>(Grid::entry(b, k / 8) >> (8 * (k % 8)) & 255);
        g.q[k] = grid_weight(b, k / 32, k % 32, entry);
    }
}

// Calls f(Block{}) with the block struct of a quantized type.
template <typename F>
void with_block(Type type, F f) {
    switch (type) {
        case Type::Q4_0:
            return f(gguf::BlockQ4_0{});
        case Type::Q4_1:
            return f(gguf::BlockQ4_1{});
        case Type::Q5_0:
            return f(gguf::BlockQ5_0{});
        case Type::Q5_1:
            return f(gguf::BlockQ5_1{});
        case Type::Q8_0:
            return f(gguf::BlockQ8_0{});
        case Type::Q2_K:
            return f(gguf::BlockQ2_K{});
        case Type::Q3_K:
            return f(gguf::BlockQ3_K{});
        case Type::Q4_K:
            return f(gguf::BlockQ4_K{});
        case Type::Q5_K:
            return f(gguf::BlockQ5_K{});
        case Type::Q6_K:
            return f(gguf::BlockQ6_K{});
        case Type::IQ4_NL:
            return f(gguf::BlockIQ4_NL{});
        case Type::IQ4_XS:
            return f(gguf::BlockIQ4_XS{});
        case Type::MXFP4:
            return f(gguf::BlockMXFP4{});
        case Type::NVFP4:
            return f(gguf::BlockNVFP4{});
        case Type::Q1_0:
            return f(gguf::BlockQ1_0{});
        case Type::Q2_0:
            return f(gguf::BlockQ2_0{});
        case Type::PQ2_0:
            return f(gguf::BlockPQ2_0{});
        case Type::PTQ1_0:
            return f(gguf::BlockPTQ1_0{});
        case Type::TQ1_0:
            return f(gguf::BlockTQ1_0{});
        case Type::TQ2_0:
            return f(gguf::BlockTQ2_0{});
        case Type::IQ2_XXS:
            return f(gguf::BlockIQ2_XXS{});
        case Type::IQ2_XS:
            return f(gguf::BlockIQ2_XS{});
        case Type::IQ2_S:
            return f(gguf::BlockIQ2_S{});
        case Type::IQ3_XXS:
            return f(gguf::BlockIQ3_XXS{});
        case Type::IQ3_S:
            return f(gguf::BlockIQ3_S{});
        case Type::IQ1_S:
            return f(gguf::BlockIQ1_S{});
        case Type::IQ1_M:
            return f(gguf::BlockIQ1_M{});
        default:
            assert(!"no block format");
    }
}

template <typename Block>
concept Has32 = requires(const Block &b, Group32 &g) {
    unpack(b, g);
};

// Blocks of several groups of 32 that share a scale.
template <typename Block>
concept HasParts32 = requires(const Block &b, Group32 &g) {
    unpack(b, 0, g);
};
template <typename Block>
constexpr int64_t kParts32 = 1;
template <>
constexpr int64_t kParts32<gguf::BlockQ1_0> = 4;
template <>
constexpr int64_t kParts32<gguf::BlockQ2_0> = 2;
template <>
constexpr int64_t kParts32<gguf::BlockPQ2_0> = 4;
template <>
constexpr int64_t kParts32<gguf::BlockPTQ1_0> = 4;

// Group g of a row of blocks.
template <typename Block>
void unpack_group(const std::byte *row, int64_t g, Group32 &group) {
    const Block block = load<Block>(row + g / kParts32<Block> * static_cast<int64_t>(sizeof(Block)));
    if constexpr (HasParts32<Block>)
        unpack(block, static_cast<int>(g % kParts32<Block>), group);
    else
        unpack(block, group);
}

template <typename Block>
concept HasHalves32 = requires(const Block &b, Halves32 &g) {
    unpack(b, 0, g);
};

template <typename Block>
concept HasMinimum32 = requires(const Block &b) {
    b.m;
};

template <typename Block>
concept HasMinimum256 = requires(const Block &b) {
    b.dmin;
};

// --- multiplying -----------------------------------------------------------------------------------------

constexpr int kTokenBlock = 16;  // tokens that share one unpacking of a block

int dot(const int *w, const int8_t *a, int count) {
    int s = 0;
    for (int i = 0; i < count; ++i) s += w[i] * a[i];
    return s;
}

template <typename Block>
void accumulate(const Group32 &w, const PackedQ8x32 &a, int g, Partials &p) {
    p[g] = std::fma(w.d * a.scale[g], static_cast<float>(dot(w.q, a.q + 32 * g, 32)), p[g]);
    if constexpr (HasMinimum32<Block>) p[g] = std::fma(w.m, a.scaled_sum[g], p[g]);
}

void accumulate(const Halves32 &w, const PackedQ8x32 &a, int g, Partials &p) {
    for (int s = 0; s < 2; ++s)
        p[g] = std::fma(w.d[s] * a.scale[g], static_cast<float>(dot(w.q + 16 * s, a.q + 32 * g + 16 * s, 16)),
                        p[g]);
}

template <typename Block>
void accumulate(const Group256 &w, const PackedQ8x256 &a, float &p) {
    int total = 0, minimum = 0;
    for (int s = 0; s < 16; ++s) {
        total += w.scale[s] * dot(w.q + 16 * s, a.q + 16 * s, 16);
        if constexpr (HasMinimum256<Block>) minimum += w.minimum[s] * a.sum16[s];
    }
    p = std::fma(w.d * a.scale, static_cast<float>(total), p);
    if constexpr (HasMinimum256<Block>) p = std::fma(-(w.dmin * a.scale), static_cast<float>(minimum), p);
}

// Multiplies one row by tokens [t0, t0 + count).
template <typename Block>
void multiply_row(const std::byte *row, int64_t cols, const void *packed, int64_t tokens, int64_t t0,
                  int count, Partials *partials) {
    if constexpr (Has32<Block> || HasParts32<Block>) {
        const PackedQ8x32 *a = static_cast<const PackedQ8x32 *>(packed);
        Group32 group{};
        for (int64_t g = 0; g < cols / 32; ++g) {
            unpack_group<Block>(row, g, group);
            for (int t = 0; t < count; ++t)
                accumulate<Block>(group, a[g / 8 * tokens + t0 + t], static_cast<int>(g % 8), partials[t]);
        }
    } else if constexpr (HasHalves32<Block>) {
        const PackedQ8x32 *a = static_cast<const PackedQ8x32 *>(packed);
        Halves32 group{};
        for (int64_t g = 0; g < cols / 32; ++g) {
            unpack(load<Block>(row + g / 2 * static_cast<int64_t>(sizeof(Block))), static_cast<int>(g % 2),
                   group);
            for (int t = 0; t < count; ++t)
                accumulate(group, a[g / 8 * tokens + t0 + t], static_cast<int>(g % 8), partials[t]);
        }
    } else {
        const PackedQ8x256 *a = static_cast<const PackedQ8x256 *>(packed);
        Group256 group{};
        for (int64_t b = 0; b < cols / 256; ++b) {
            unpack(load<Block>(row + b * static_cast<int64_t>(sizeof(Block))), group);
            for (int t = 0; t < count; ++t)
                accumulate<Block>(group, a[b * tokens + t0 + t], partials[t][b % 8]);
        }
    }
}

float plain_value(Type type, const std::byte *row, int64_t k) {
    if (type == Type::F32) return load<float>(row + 4 * k);
    const uint16_t bits = load<uint16_t>(row + 2 * k);
    return type == Type::F16 ? gguf::f16_to_f32(bits) : gguf::bf16_to_f32(bits);
}

// F32, F16, BF16. The row is padded with zeros to a multiple of 8.
void multiply_plain_row(Type type, const std::byte *row, int64_t cols, const void *packed, int64_t tokens,
                        int64_t t0, int count, Partials *partials) {
    const PackedF32 *a = static_cast<const PackedF32 *>(packed);
    for (int64_t k = 0; k < (cols + 7) / 8 * 8; ++k) {
        const float w = k < cols ? plain_value(type, row, k) : 0.0f;
        for (int t = 0; t < count; ++t) {
            float &p = partials[t][k % 8];
            p = std::fma(w, a[k / kRecordCols * tokens + t0 + t].x[k % kRecordCols], p);
        }
    }
}

void multiply(Type type, const std::byte *weights, int64_t cols, int64_t row0, int64_t row1,
              const void *packed, int32_t tokens, float *out, int64_t out_stride, void *, const std::byte *) {
    const int64_t stride = static_cast<int64_t>(gguf::row_bytes(type, cols));
    for (int64_t r = row0; r < row1; ++r) {
        const std::byte *row = weights + r * stride;
        for (int32_t t0 = 0; t0 < tokens; t0 += kTokenBlock) {
            const int count = std::min(kTokenBlock, tokens - t0);
            Partials partials[kTokenBlock] = {};
            if (act_format(type) == ActFormat::F32)
                multiply_plain_row(type, row, cols, packed, tokens, t0, count, partials);
            else
                with_block(type, [&]<typename Block>(Block) {
                    multiply_row<Block>(row, cols, packed, tokens, t0, count, partials);
                });
            for (int t = 0; t < count; ++t) out[(t0 + t) * out_stride + r] = fold(partials[t]);
        }
    }
}

size_t scratch_bytes(int64_t) {
    return 64;
}

// --- dequantizing ----------------------------------------------------------------------------------------

template <typename Block>
void dequantize_blocks(const std::byte *row, int64_t cols, float *out) {
    if constexpr (Has32<Block> || HasParts32<Block>) {
        Group32 group{};
        for (int64_t g = 0; g < cols / 32; ++g) {
            unpack_group<Block>(row, g, group);
            for (int i = 0; i < 32; ++i) {
                const float value = static_cast<float>(group.q[i]) * group.d;
                out[32 * g + i] = HasMinimum32<Block> ? value + group.m : value;
            }
        }
    } else if constexpr (HasHalves32<Block>) {
        Halves32 group{};
        for (int64_t g = 0; g < cols / 32; ++g) {
            unpack(load<Block>(row + g / 2 * static_cast<int64_t>(sizeof(Block))), static_cast<int>(g % 2),
                   group);
            for (int i = 0; i < 32; ++i) out[32 * g + i] = group.d[i / 16] * static_cast<float>(group.q[i]);
        }
    } else {
        Group256 group{};
        for (int64_t b = 0; b < cols / 256; ++b) {
            unpack(load<Block>(row + b * static_cast<int64_t>(sizeof(Block))), group);
            for (int k = 0; k < 256; ++k) {
                const float scale = group.d * static_cast<float>(group.scale[k / 16]);
                const float value = scale * static_cast<float>(group.q[k]);
                const float minimum = group.dmin * static_cast<float>(group.minimum[k / 16]);
                out[256 * b + k] = HasMinimum256<Block> ? value - minimum : value;
            }
        }
    }
}

void dequantize(Type type, const std::byte *row, int64_t cols, float *out) {
    if (act_format(type) == ActFormat::F32) {
        for (int64_t k = 0; k < cols; ++k) out[k] = plain_value(type, row, k);
        return;
    }
    with_block(type, [&]<typename Block>(Block) { dequantize_blocks<Block>(row, cols, out); });
}

}  // namespace

const LinearKernels kLinearScalar{"scalar", pack, multiply, scratch_bytes, dequantize};

}  // namespace runnel::kernels::cpu
