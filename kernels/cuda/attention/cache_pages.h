// The layout of a layer's K, or V, on the device: [block][kv_head] pages of 32 cells.
//
// A page is a plane of values, [32 cells][row_bytes], for types with a scale then a plane of scales, [32
// cells][dims / 32] binary16 (with a least value: pairs of scale and least value), and for levels of five bits then a
// plane of the fifth bits, [32 cells][dims / 32] words. The planes can thus be read in aligned 16-byte pieces, or in
// adjacent 2- or 4-byte ones. Values of a cell:
//   F16, BF16   in order;
//   FP8         in order, one byte each;
//   Q8_0        in order, one byte each: the integer + 128;
//   others      nibbles: 32 bits for every 8 dimensions: the even ones from the lowest bits up, then the odd ones; the
//               level, counted from 0. Fifth bits: dimension d in bit d % 32.
// All types but F16 are padded with zeros (with a least value: with it) to a multiple of 32 dimensions. The values are
// those that the CPU writes (cpu/attention_formats.h), in another order. Queries are multiplied with keys as 16-bit
// numbers: BF16 keys unchanged, all others as binary16, to which d q or d q + m (cache_type.h) is rounded once. There is
// no F32 here: it would be rounded to the same 16 bits.
#pragma once

#include <cstdint>

#include "kernels/backend.h"

namespace runnel::kernels::cuda {

struct CachePages {
    unsigned char *bytes;  // of the layer
    CacheType type;
    int32_t dims;         // of a head
    int32_t row_bytes;    // values of a cell
    int32_t scale_bytes;  // scales of a cell
    int32_t fifth_bytes;  // fifth bits of a cell
    int32_t rotated;      // the heads are rotated (cache_type.h)
    constexpr int64_t page_bytes() const {
        return int64_t{kBlockTokens} * (row_bytes + scale_bytes + fifth_bytes);
    }
};

constexpr bool is_packed(CacheType type) {
    return type != CacheType::F16 && type != CacheType::BF16;
}
// log2 of 16 / the type's bits per value (without scales).
constexpr int halvings(CacheType type) {
    return has_nibbles(type) ? 2 : is_packed(type) ? 1 : 0;
}

// rotated: whether this cache (K or V) keeps its heads rotated.
constexpr CachePages cache_pages(void *bytes, CacheType type, int32_t dims, bool rotated) {
    const int32_t blocks = (dims + 31) / 32;
    const int32_t scales = !has_scales(type) ? 0 : blocks * (has_minimum(type) ? 4 : 2);
    const int32_t fifth = has_fifth_bit(type) ? blocks * 4 : 0;
    const auto row = static_cast<int32_t>(cache_row_bytes(type, dims)) - scales - fifth;
    return {static_cast<unsigned char *>(bytes), type, dims, row, scales, fifth, rotated ? 1 : 0};
}

}  // namespace runnel::kernels::cuda
