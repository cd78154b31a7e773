#include "gguf/block.h"

#include <cassert>

#include "gguf/codebook.h"
#include "gguf/nvfp4.h"

namespace runnel::gguf {
namespace {

constexpr TypeTraits kTypes[] = {
    {Type::F32, "f32", 1, 4, true, false},
    {Type::F16, "f16", 1, 2, true, false},
    {Type::Q4_0, "q4_0", 32, sizeof(BlockQ4_0), true, true},
    {Type::Q4_1, "q4_1", 32, sizeof(BlockQ4_1), true, true},
    {Type::Q5_0, "q5_0", 32, sizeof(BlockQ5_0), true, true},
    {Type::Q5_1, "q5_1", 32, sizeof(BlockQ5_1), true, true},
    {Type::Q8_0, "q8_0", 32, sizeof(BlockQ8_0), true, true},
    {Type::Q8_1, "q8_1", 32, 36, false, true},
    {Type::Q2_K, "q2_K", 256, sizeof(BlockQ2_K), true, true},
    {Type::Q3_K, "q3_K", 256, sizeof(BlockQ3_K), true, true},
    {Type::Q4_K, "q4_K", 256, sizeof(BlockQ4_K), true, true},
    {Type::Q5_K, "q5_K", 256, sizeof(BlockQ5_K), true, true},
    {Type::Q6_K, "q6_K", 256, sizeof(BlockQ6_K), true, true},
    {Type::Q8_K, "q8_K", 256, 292, false, true},
    {Type::IQ2_XXS, "iq2_xxs", 256, sizeof(BlockIQ2_XXS), true, true},
    {Type::IQ2_XS, "iq2_xs", 256, sizeof(BlockIQ2_XS), true, true},
    {Type::IQ3_XXS, "iq3_xxs", 256, sizeof(BlockIQ3_XXS), true, true},
    {Type::IQ1_S, "iq1_s", 256, sizeof(BlockIQ1_S), true, true},
    {Type::IQ4_NL, "iq4_nl", 32, sizeof(BlockIQ4_NL), true, true},
    {Type::IQ3_S, "iq3_s", 256, sizeof(BlockIQ3_S), true, true},
    {Type::IQ2_S, "iq2_s", 256, sizeof(BlockIQ2_S), true, true},
    {Type::IQ4_XS, "iq4_xs", 256, sizeof(BlockIQ4_XS), true, true},
    {Type::I8, "i8", 1, 1, true, false},
    {Type::I16, "i16", 1, 2, true, false},
    {Type::I32, "i32", 1, 4, true, false},
    {Type::I64, "i64", 1, 8, true, false},
    {Type::F64, "f64", 1, 8, true, false},
    {Type::IQ1_M, "iq1_m", 256, sizeof(BlockIQ1_M), true, true},
    {Type::BF16, "bf16", 1, 2, true, false},
    {Type::TQ1_0, "tq1_0", 256, sizeof(BlockTQ1_0), true, true},
    {Type::TQ2_0, "tq2_0", 256, sizeof(BlockTQ2_0), true, true},
    {Type::MXFP4, "mxfp4", 32, sizeof(BlockMXFP4), true, true},
    {Type::NVFP4, "nvfp4", 64, sizeof(BlockNVFP4), true, true},
    {Type::Q1_0, "q1_0", 128, sizeof(BlockQ1_0), true, true},
    {Type::Q2_0, "q2_0", 64, sizeof(BlockQ2_0), true, true},
    {Type::PQ2_0, "pq2_0", 128, sizeof(BlockPQ2_0), true, true},
    {Type::PTQ1_0, "ptq1_0", 128, sizeof(BlockPTQ1_0), true, true},
};

}  // namespace

const TypeTraits *find_type(uint32_t id) noexcept {
    for (const TypeTraits &t : kTypes)
        if (static_cast<uint32_t>(t.type) == id) return &t;
    return nullptr;
}

const TypeTraits &traits(Type type) noexcept {
    const TypeTraits *t = find_type(static_cast<uint32_t>(type));
    assert(t != nullptr);
    return *t;
}

size_t row_bytes(Type type, int64_t n) noexcept {
    const TypeTraits &t = traits(type);
    return static_cast<size_t>(n) / t.block_size * t.block_bytes;
}

}  // namespace runnel::gguf
