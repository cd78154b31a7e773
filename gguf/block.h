// The block formats of GGUF tensors: their ids, sizes and byte layouts.
//
// A quantized row is a sequence of blocks; a block stores `block_size` consecutive weights in `block_bytes` bytes:
// small integers plus the scales that turn them into values. The layouts are ggml's (ggml-common.h). Every struct
// below is packed exactly as in a file, little-endian, and may be at any address (a row of 18-byte blocks is
// 2-byte aligned at best, MXFP4 only 1-byte): read fields with memcpy or through these packed structs, never
// through a cast to a wider type.
//
// kernels/ may include this header (with half.h, codebook.h) and no other of gguf/: it describes bytes, not files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "gguf/half.h"  // part of the layouts: most blocks hold f16 scales

namespace runnel::gguf {

// clang-format off
// Values are the ids used in files. ggml withdrew the missing ones (4, 5, 31-33, 36-38).
enum class Type : uint32_t {
    F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q8_1 = 9,
    Q2_K = 10, Q3_K = 11, Q4_K = 12, Q5_K = 13, Q6_K = 14, Q8_K = 15,
    IQ2_XXS = 16, IQ2_XS = 17, IQ3_XXS = 18, IQ1_S = 19, IQ4_NL = 20, IQ3_S = 21, IQ2_S = 22, IQ4_XS = 23,
    I8 = 24, I16 = 25, I32 = 26, I64 = 27, F64 = 28, IQ1_M = 29, BF16 = 30, TQ1_0 = 34, TQ2_0 = 35,
    MXFP4 = 39, NVFP4 = 40, Q1_0 = 41, Q2_0 = 42,
    PQ2_0 = 142, PTQ1_0 = 143,  // PrismML's, not ggml's; ik_llama.cpp withdrew two others of these ids
};

inline constexpr uint32_t kTypeIds = 144;  // all ids are smaller

struct TypeTraits {
    Type type;
    std::string_view name;   // ggml's name, lower or upper case as llama.cpp prints it: "q4_K", "f16"
    uint32_t block_size;     // weights per block
    uint32_t block_bytes;    // bytes per block
    bool supported;          // values can be read (dequantized) by this build
    bool quantized;  // stores block-quantized weights (not a plain number type)
};

// Null for an unknown id.
const TypeTraits *find_type(uint32_t id) noexcept;
// Precondition: `type` came from find_type or is one of the enumerators.
const TypeTraits &traits(Type type) noexcept;

inline constexpr int kSuperBlock = 256;  // weights in a block of the K types, IQ4_XS and TQ*

#pragma pack(push, 1)
using f16_bits = uint16_t;  // IEEE binary16, as bits

// value = d * (q - 8); byte i holds weight i in its low and weight i + 16 in its high nibble.
struct BlockQ4_0 { f16_bits d; uint8_t qs[16]; };
// value = d * q + m; nibbles as Q4_0.
struct BlockQ4_1 { f16_bits d, m; uint8_t qs[16]; };
// value = d * (q - 16); nibbles as Q4_0, bit i of the little-endian word qh is bit 4 of weight i.
struct BlockQ5_0 { f16_bits d; uint8_t qh[4]; uint8_t qs[16]; };
// value = d * q + m; bits as Q5_0.
struct BlockQ5_1 { f16_bits d, m; uint8_t qh[4]; uint8_t qs[16]; };
// value = d * q.
struct BlockQ8_0 { f16_bits d; int8_t qs[32]; };
// 16 groups of 16: value = d * (scales & 15) * q - dmin * (scales >> 4); 2-bit q, four per byte, 32 apart.
struct BlockQ2_K { uint8_t scales[16]; uint8_t qs[64]; f16_bits d, dmin; };
// 16 groups of 16: value = d * (s - 32) * (q - 4); q's bit 2 is in hmask; s are 6-bit, packed in 12 bytes.
struct BlockQ3_K { uint8_t hmask[32]; uint8_t qs[64]; uint8_t scales[12]; f16_bits d; };
// 8 groups of 32: value = d * s * q - dmin * m; s and m are 6-bit, packed together in 12 bytes.
struct BlockQ4_K { f16_bits d, dmin; uint8_t scales[12]; uint8_t qs[128]; };
// As Q4_K with a fifth bit: bit g of qh[i] belongs to weight i of group g.
struct BlockQ5_K { f16_bits d, dmin; uint8_t scales[12]; uint8_t qh[32]; uint8_t qs[128]; };
// 16 groups of 16: value = d * scales * (q - 32); 4 low bits in ql, 2 high bits in qh.
struct BlockQ6_K { uint8_t ql[128]; uint8_t qh[64]; int8_t scales[16]; f16_bits d; };
// value = d * kIQ4Values[q]; nibbles as Q4_0.
struct BlockIQ4_NL { f16_bits d; uint8_t qs[16]; };
// 8 groups of 32: value = d * (s - 32) * kIQ4Values[q]; s: 4 low bits in scales_l, 2 high bits in scales_h.
struct BlockIQ4_XS { f16_bits d; uint16_t scales_h; uint8_t scales_l[4]; uint8_t qs[128]; };
// value = 2^(e - 128) * kMXFP4Values[q] (the table holds doubled E2M1 values); nibbles as Q4_0.
struct BlockMXFP4 { uint8_t e; uint8_t qs[16]; };
// value = d * (trit - 1); five trits per byte of qs (base 3, scaled to 256), four per byte of qh.
struct BlockTQ1_0 { uint8_t qs[48]; uint8_t qh[4]; f16_bits d; };
// value = d * (q - 1); 2-bit q, four per byte, 32 apart.
struct BlockTQ2_0 { uint8_t qs[64]; f16_bits d; };
// 128 weights: value = d where bit i % 8 of qs[i / 8] is set, else -d.
struct BlockQ1_0 { f16_bits d; uint8_t qs[16]; };
// 64 weights: value = d * (q - 1); 2-bit q, four neighbors per byte, the first in its lowest bits.
struct BlockQ2_0 { f16_bits d; uint8_t qs[16]; };
// 128 weights, otherwise as Q2_0.
struct BlockPQ2_0 { f16_bits d; uint8_t qs[32]; };
// 128 weights: value = d * (trit - 1); trits in bytes as TQ1_0. Trit n of byte i of qs is weight 16 n + i for i < 16,
// else 80 + 8 n + i - 16; trit n < 4 of byte i of qh is weight 120 + 2 n + i.
struct BlockPTQ1_0 { uint8_t qs[24]; uint8_t qh[2]; f16_bits d; };
#pragma pack(pop)
// clang-format on

static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 && sizeof(BlockQ5_0) == 22);
static_assert(sizeof(BlockQ5_1) == 24 && sizeof(BlockQ8_0) == 34 && sizeof(BlockQ2_K) == 84);
static_assert(sizeof(BlockQ3_K) == 110 && sizeof(BlockQ4_K) == 144 && sizeof(BlockQ5_K) == 176);
static_assert(sizeof(BlockQ6_K) == 210 && sizeof(BlockIQ4_NL) == 18 && sizeof(BlockIQ4_XS) == 136);
static_assert(sizeof(BlockQ1_0) == 18 && sizeof(BlockQ2_0) == 18);
static_assert(sizeof(BlockPQ2_0) == 34 && sizeof(BlockPTQ1_0) == 28);
static_assert(sizeof(BlockMXFP4) == 17 && sizeof(BlockTQ1_0) == 54 && sizeof(BlockTQ2_0) == 66);

inline constexpr int8_t kIQ4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};
inline constexpr int8_t kMXFP4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Bytes of a row of `n` weights. Precondition: n is a multiple of the type's block size.
size_t row_bytes(Type type, int64_t n) noexcept;

}  // namespace runnel::gguf
