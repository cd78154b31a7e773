// Conversion of K and V between the cache's types and 16-bit numbers for the matrix products. For kernels.
#pragma once

#include "kernels/cuda/attention/cache_pages.h"
#include "kernels/cuda/runtime/device.h"
#include "kernels/cuda/runtime/nibble_table.h"

namespace runnel::kernels::cuda {

// The 16-bit type in which a cache type's values are multiplied.
struct Products {
    bool bfloat;

    DEVICE uint16_t round(float x) const { return bfloat ? f32_to_bf16(x) : f32_to_f16(x); }
    DEVICE uint32_t pack(float lo, float hi) const { return bfloat ? pack_bf16(lo, hi) : pack_f16(lo, hi); }
    DEVICE uint32_t ones() const { return bfloat ? 0x3f803f80u : 0x3c003c00u; }
    DEVICE void mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) const {
        if (bfloat)
            mma_bf16_k16(c, a, b);
        else
            mma_f16_k16(c, a, b);
    }
};

DEVICE Products products_of(const CachePages &pages) {
    return {pages.type == CacheType::BF16};
}

// --- writing ---------------------------------------------------------------------------------------------

// OCP e4m3 ("OFP8", 2023): rounds to nearest even; above 448 the largest number; 0x7f for values that are not finite.
DEVICE uint8_t f32_to_e4m3(float x) {
    const uint32_t sign = float_bits(x) >> 24 & 0x80u, bits = float_bits(x) & 0x7fffffffu;
    if (bits >= 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
    if (bits < 0x3c800000u)  // below 2^-6: steps of 2^-9
        return static_cast<uint8_t>(sign | static_cast<uint32_t>(float_to_int_rn(bits_float(bits) * 512.0f)));
    const uint32_t rounded = ((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20) - (120u << 3);
    return static_cast<uint8_t>(sign | (rounded > 0x7eu ? 0x7eu : rounded));
}

// Converts two e4m3 bytes, each in the high half of 16 bits, to binary16: exact, except that
// 0x7f does not become NaN; OR the result with nan_of() for that.
DEVICE uint32_t e4m3_number(uint32_t pair) {
    return h2_mul((pair & 0x80008000u) | (pair >> 1 & 0x3f803f80u), 0x5c005c00u);  // 0x5c00 is 256
}
DEVICE uint32_t nan_of(uint32_t pair) {
    return ((pair & 0x7f00u) == 0x7f00u ? 0x7fffu : 0u) |
           ((pair & 0x7f000000u) == 0x7f000000u ? 0x7fff0000u : 0u);
}
DEVICE bool has_nan(uint32_t four) {
    return (((four & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u) != 0;
}

// gguf::kIQ4Values.
struct IQ4Values {
    float of[16];
};
DEVICE_DATA IQ4Values kDeviceIQ4 = {
    {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}};

// The index of the value nearest to y.
DEVICE int nearest_iq4(float y) {
    int index = 0;
#pragma unroll 1
    for (int i = 0; i < 15; ++i) index += y >= 0.5f * (kDeviceIQ4.of[i] + kDeviceIQ4.of[i + 1]) ? 1 : 0;
    return index;
}

// Warp collective: table_scale() of cpu/attention_formats.h.
DEVICE float iq4_scale(float x, float first) {
    const float v = kDeviceIQ4.of[nearest_iq4(first == 0.0f ? 0.0f : x * (1.0f / first))];
    const float weighted = x * x * v, products = warp_sum(weighted * x), squares = warp_sum(weighted * v);
    return squares > 0.0f ? products / squares : first;
}

// The level of the nibble types whose code is 0, or 0 for IQ4_NL, whose codes are indices.
DEVICE float least_level(CacheType type) {
    if (has_minimum(type) || type == CacheType::IQ4_NL) return 0.0f;
    return type == CacheType::Q4_0 ? -8.0f : -16.0f;
}

struct Quantized {
    uint16_t scale, least;  // binary16; least is -0 in types without one
    int code;               // as stored
    float level;            // what the scale is multiplied by
};

constexpr uint16_t kMinusZero = 0x8000;

// Warp collective: quantizes 32 values, one per lane; those of lanes without a dimension are 0 and not `exists`. A
// value that is not finite, or beyond the range of a binary16 scale, makes the scale NaN.
DEVICE Quantized quantize(CacheType type, float x, bool exists) {
    const float magnitude = fabsf(x), largest = warp_max(magnitude);
    const bool finite = all(magnitude <= 1e6f), eight = type == CacheType::Q8_0,
               table = type == CacheType::IQ4_NL;
    const float most = has_fifth_bit(type) ? 31.0f : 15.0f;  // of a code
    Quantized q{0, kMinusZero, 0, 0};
    float wanted, low = 0.0f;
    if (eight) {
        wanted = largest / 127.0f;
    } else if (has_minimum(type)) {
        const float high = warp_max(exists ? x : -1e30f);
        low = -warp_max(exists ? -x : -1e30f);
        q.least = f32_to_f16(fmaxf(fminf(low, 65504.0f), -65504.0f));
        low = f16_to_f32(q.least);
        wanted = (high - low) / most;
    } else {
        const uint32_t where = ballot(magnitude == largest);
        const float extreme = shfl(x, where ? 31 - clz(where & (0u - where)) : 0);
        wanted = extreme / (table ? -127.0f : least_level(type));
        if (table) wanted = iq4_scale(x, wanted);
    }
    q.scale = finite ? f32_to_f16(wanted) : 0x7e00u;
    const float step = f16_to_f32(q.scale);
    const float exact = exists && finite && step != 0.0f ? (x - low) * (1.0f / step) : 0.0f;
    if (table) {
        q.code = nearest_iq4(exact);
        q.level = kDeviceIQ4.of[q.code];
        return q;
    }
    const float least = eight ? -127.0f : least_level(type);
    q.level = fmaxf(fminf(rint_rn(exact), eight ? 127.0f : least + most), least);
    q.code = static_cast<int>(q.level - (eight ? -128.0f : least));
    return q;
}

// The location of a cell in a page.
struct CellBytes {
    unsigned char *values;
    uint16_t *scales;  // or pairs of scale and least value
    uint32_t *fifth_bits;
};
DEVICE CellBytes cell_bytes(const CachePages &pages, unsigned char *page, int cell) {
    const int at = cell % kBlockTokens;
    unsigned char *scales = page + kBlockTokens * pages.row_bytes,
                  *fifth_bits = scales + kBlockTokens * pages.scale_bytes;
    return {page + at * pages.row_bytes, reinterpret_cast<uint16_t *>(scales + at * pages.scale_bytes),
            reinterpret_cast<uint32_t *>(fifth_bits + at * pages.fifth_bytes)};
}

// Warp collective: stores 32 dimensions of a head in the cell, if `writes`; x is dimension 32 block + lane.
// Returns the lane's value as it will be read back.
template <bool kPacked>
DEVICE uint16_t store_values(const CachePages &pages, const CellBytes &to, int block, float x, bool writes) {
    const int d = 32 * block + lane_index();
    if (!kPacked || !is_packed(pages.type)) {
        const uint16_t rounded = products_of(pages).round(x);
        if (writes && 2 * d < pages.row_bytes) reinterpret_cast<uint16_t *>(to.values)[d] = rounded;
        return rounded;
    }
    if (pages.type == CacheType::FP8) {
        const uint8_t byte = f32_to_e4m3(x);
        if (writes) to.values[d] = byte;
        const uint32_t wide = static_cast<uint32_t>(byte) << 8;
        return static_cast<uint16_t>(e4m3_number(wide) | nan_of(wide));
    }
    const bool nibbles = has_nibbles(pages.type), minimum = has_minimum(pages.type);
    const Quantized q = quantize(pages.type, x, d < pages.dims);
    const uint32_t fifth_bits = ballot((q.code & 16) != 0);
    const int above = shfl_xor(q.code, 2);  // dimension d + 2, the high nibble of the byte
    if (writes && lane_index() == 0) {
        to.scales[minimum ? 2 * block : block] = q.scale;
        if (minimum) to.scales[2 * block + 1] = q.least;
        if (has_fifth_bit(pages.type)) to.fifth_bits[block] = fifth_bits;
    }
    if (writes && nibbles && !(d & 2)) {
        const int byte = (d & 1) * 2 + (d >> 2 & 1);
        to.values[4 * (d / 8) + byte] = static_cast<unsigned char>((q.code & 15) | (above & 15) << 4);
    }
    if (writes && !nibbles) to.values[d] = static_cast<unsigned char>(q.code);
    return static_cast<uint16_t>(h2_fma(f32_to_f16(q.level), q.scale, q.least));
}

// Warp collective: stores a finished head (attention_head.h) in a cell, if `writes`. Calls seen(d, value)
// with every value as it will be read back, and with zeros up to the next multiple of 32.
template <bool kPacked, class Seen>
DEVICE void store_head(const CachePages &pages, unsigned char *page, int cell, const float *x, bool writes,
                       Seen seen) {
    const CellBytes to = cell_bytes(pages, page, cell);
#pragma unroll 1
    for (int block = 0; 32 * block < pages.dims; ++block) {
        const int d = 32 * block + lane_index();
        seen(d, store_values<kPacked>(pages, to, block, d < pages.dims ? x[d] : 0.0f, writes));
    }
}

// --- reading ---------------------------------------------------------------------------------------------

// (biased - offset) * scale, for two binary16 numbers: biased is 1024 + 2^k + integer, offset is 1024 + 2^k.
DEVICE uint32_t scaled(uint32_t biased, uint32_t offset, uint32_t scale) {
    return h2_mul(h2_sub(biased, offset), scale);
}

// What the values of a block of 32 share. Zeros for types without scales.
struct BlockParts {
    uint32_t scales;  // the scale in the low half, the least value in the high one, -0 if the type has none
    uint32_t fifth_bits;
};

// Of block number `block` of a cell.
DEVICE uint32_t scales_of(CacheType type, const CellBytes &cell, int block) {
    if (!has_scales(type)) return 0;
    return has_minimum(type) ? reinterpret_cast<const uint32_t *>(cell.scales)[block]
                             : cell.scales[block] | uint32_t{kMinusZero} << 16;
}
DEVICE BlockParts block_parts(CacheType type, const CellBytes &cell, int block) {
    return {scales_of(type, cell, block), has_fifth_bit(type) ? cell.fifth_bits[block] : 0};
}

// Eight values of a type with nibbles, other than Q4_0, from their 32 bits. fifth_bits: theirs, from bit 0 on.
DEVICE uint4 unpack_nibbles(CacheType type, uint32_t word, uint32_t scales, uint32_t fifth_bits) {
    const uint32_t scale = prmt(scales, 0, 0x1010), least = prmt(scales, 0, 0x3232);
    if (type == CacheType::IQ4_NL) {
        const uint32_t table[4] = {kIQ4Word0, kIQ4Word1, kIQ4Word2, kIQ4Word3};
        uint32_t low, high;
        look_up(table, word, low, high);
        const auto pair = [&](uint32_t bytes, uint32_t selector) {
            return scaled(prmt(bytes, 0x64646464u, selector), 0x64806480u, scale);
        };
        return {pair(low, 0x4240), pair(high, 0x4240), pair(low, 0x4341), pair(high, 0x4341)};
    }
    // 1024 + the code of level 0.
    const uint32_t offset = has_minimum(type) ? 0x64006400u : 0x64106410u;
    const uint32_t fifth = (fifth_bits & 0xffu) | (fifth_bits & 0xffu)
                                                      << 15;  // even bits below, odd ones above
    const auto pair = [&](int j) {
        const uint32_t codes = (word >> 4 * j & 0x000f000fu) | (fifth >> 2 * j & 0x00010001u) << 4;
        return h2_fma(h2_sub(codes | 0x64006400u, offset), scale, least);
    };
    return {pair(0), pair(1), pair(2), pair(3)};
}

// Eight values of Q8_0, Q4_0 or FP8 from their bytes (Q4_0: w.x alone). scale: the block's, in both halves.
DEVICE uint4 unpack_eight(CacheType type, uint2 w, uint32_t scale) {
    if (type == CacheType::Q4_0) {
        const auto pair = [&](int j) {
            return scaled((w.x >> 4 * j & 0x000f000fu) | 0x64006400u, 0x64086408u, scale);
        };
        return {pair(0), pair(1), pair(2), pair(3)};
    }
    if (type == CacheType::FP8) {
        const uint32_t pairs[4] = {prmt(w.x, 0, 0x1404), prmt(w.x, 0, 0x3424), prmt(w.y, 0, 0x1404),
                                   prmt(w.y, 0, 0x3424)};
        uint4 eight = {e4m3_number(pairs[0]), e4m3_number(pairs[1]), e4m3_number(pairs[2]),
                       e4m3_number(pairs[3])};
        if (has_nan(w.x) || has_nan(w.y)) {  // rare
            eight.x |= nan_of(pairs[0]), eight.y |= nan_of(pairs[1]);
            eight.z |= nan_of(pairs[2]), eight.w |= nan_of(pairs[3]);
        }
        return eight;
    }
    const auto pair = [&](uint32_t bytes, uint32_t selector) {
        return scaled(prmt(bytes, 0x64646464u, selector), 0x64806480u, scale);
    };
    return {pair(w.x, 0x4140), pair(w.x, 0x4342), pair(w.y, 0x4140), pair(w.y, 0x4342)};
}

// Values [8 chunk, 8 chunk + 8) of a cell of any type. parts: of the chunk's block.
DEVICE uint4 load_chunk(CacheType type, const unsigned char *values, int chunk, const BlockParts &parts) {
    if (!is_packed(type)) return ld128(values + 16 * chunk);
    const uint32_t scale = prmt(parts.scales, 0, 0x1010);
    if (!has_nibbles(type)) return unpack_eight(type, ld64(values + 8 * chunk), scale);
    const uint32_t word = *reinterpret_cast<const uint32_t *>(values + 4 * chunk);
    if (type == CacheType::Q4_0) return unpack_eight(type, {word, 0}, scale);
    return unpack_nibbles(type, word, parts.scales, parts.fifth_bits >> 8 * (chunk % 4));
}

}  // namespace runnel::kernels::cuda
