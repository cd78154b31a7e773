// Conversion of K and V between the cache's types and 16-bit numbers for the matrix products. For kernels.
#pragma once

#include "kernels/cuda/attention/cache_pages.h"
#include "kernels/cuda/runtime/device.h"

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

struct Quantized {
    uint16_t scale;  // binary16
    int value;       // Q8_0: -127..127; Q4_0: -8..7
};

// Warp collective: quantizes 32 values, one per lane. A value that is not finite, or beyond the range of a
// binary16 scale, makes the scale NaN.
DEVICE Quantized quantize(bool nibbles, float x) {
    const float magnitude = fabsf(x), largest = warp_max(magnitude);
    const uint32_t where = ballot(magnitude == largest);
    const bool finite = all(magnitude <= 1e6f);
    const float extreme = shfl(x, where ? 31 - clz(where & (0u - where)) : 0);
    const uint16_t scale = finite ? f32_to_f16(nibbles ? extreme / -8.0f : largest / 127.0f) : 0x7e00u;
    const float step = f16_to_f32(scale);
    const float least = nibbles ? -8.0f : -127.0f, most = nibbles ? 7.0f : 127.0f;
    float value = finite && step != 0.0f ? rint_rn(x * (1.0f / step)) : 0.0f;
    value = value < least ? least : value > most ? most : value;
    return {scale, static_cast<int>(value)};
}

// The location of a cell in a page.
struct CellBytes {
    unsigned char *values;
    uint16_t *scales;
};
DEVICE CellBytes cell_bytes(const CachePages &pages, unsigned char *page, int cell) {
    const int at = cell % kBlockTokens;
    return {page + at * pages.row_bytes,
            reinterpret_cast<uint16_t *>(page + kBlockTokens * pages.row_bytes + at * pages.scale_bytes)};
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
    const bool nibbles = pages.type == CacheType::Q4_0;
    const Quantized q = quantize(nibbles, x);
    if (writes && lane_index() == 0) to.scales[block] = q.scale;
    const int above = shfl_xor(q.value, 2);  // dimension d + 2, the high nibble of the byte
    if (writes && nibbles && !(d & 2)) {
        const int byte = (d & 1) * 2 + (d >> 2 & 1);
        to.values[4 * (d / 8) + byte] = static_cast<unsigned char>((q.value + 8) | (above + 8) << 4);
    }
    if (writes && !nibbles) to.values[d] = static_cast<unsigned char>(q.value + 128);
    return f32_to_f16(f16_to_f32(q.scale) * static_cast<float>(q.value));
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

// Eight values of a packed type from their bytes (Q4_0: w.x alone). scale: the block's, in both halves.
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

// Values [8 chunk, 8 chunk + 8) of a cell of any type.
DEVICE uint4 load_chunk(CacheType type, const unsigned char *values, int chunk, uint32_t scale) {
    if (!is_packed(type)) return ld128(values + 16 * chunk);
    if (type != CacheType::Q4_0) return unpack_eight(type, ld64(values + 8 * chunk), scale);
    return unpack_eight(type, {*reinterpret_cast<const uint32_t *>(values + 4 * chunk), 0}, scale);
}

}  // namespace runnel::kernels::cuda
