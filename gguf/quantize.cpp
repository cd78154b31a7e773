#include "gguf/quantize.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>

#include "gguf/encode.h"
#include "gguf/standard_encode.h"

namespace runnel::gguf {
namespace {

template <class Block, int kWeights>
void encode_blocks(const float *in, std::byte *blocks, int64_t n, Effort effort) {
    for (int64_t i = 0; i < n / kWeights; ++i) {
        Block block;
        encode(in + i * kWeights, block, effort);
        std::memcpy(blocks + i * static_cast<int64_t>(sizeof block), &block, sizeof block);
    }
}

template <class Convert>
void convert(const float *in, std::byte *out, int64_t n, Convert to_bits) {
    for (int64_t i = 0; i < n; ++i) {
        const uint16_t bits = to_bits(in[i]);
        std::memcpy(out + 2 * i, &bits, sizeof bits);
    }
}

// Formats with blocks of 32 weights. With importance, the scale is searched; without, it follows from the
// largest value.
template <class Block>
void standard_small(std::span<const float> row, std::span<const float> importance, std::byte *out) {
    float squares = 0;
    for (const float x : row) squares += x * x;
    const float mean_square = squares / static_cast<float>(row.size());
    for (size_t at = 0; at < row.size(); at += 32, out += sizeof(Block)) {
        Block block;
        if (importance.empty())
            encode(row.data() + at, block, Effort::Thorough);
        else
            standard_encode(row.subspan(at, 32), importance.subspan(at, 32), mean_square, block);
        std::memcpy(out, &block, sizeof block);
    }
}

template <class Block, size_t kWeights>
void standard_blocks(std::span<const float> row, std::span<const float> importance, std::byte *out) {
    for (size_t at = 0; at < row.size(); at += kWeights, out += sizeof(Block)) {
        Block block;
        standard_encode(row.subspan(at, kWeights),
                        importance.empty() ? importance : importance.subspan(at, kWeights), block);
        std::memcpy(out, &block, sizeof block);
    }
}

// Formats that are searched several blocks at a time.
template <class Block>
void standard_batches(std::span<const float> row, std::span<const float> importance, std::byte *out) {
    for (size_t at = 0; at < row.size(); at += kEncodeBatch * kSuperBlock) {
        const size_t values = std::min(row.size() - at, kEncodeBatch * kSuperBlock);
        std::array<Block, kEncodeBatch> batch;
        const std::span blocks = std::span(batch).first(values / kSuperBlock);
        standard_encode(row.subspan(at, values),
                        importance.empty() ? importance : importance.subspan(at, values), blocks);
        std::memcpy(out, blocks.data(), blocks.size_bytes());
        out += blocks.size_bytes();
    }
}

void standard_row(Type type, std::span<const float> row, std::span<const float> importance, std::byte *out) {
    switch (type) {
        case Type::Q4_0:
            return standard_small<BlockQ4_0>(row, importance, out);
        case Type::Q4_1:
            return standard_small<BlockQ4_1>(row, importance, out);
        case Type::Q5_0:
            return standard_small<BlockQ5_0>(row, importance, out);
        case Type::Q5_1:
            return standard_small<BlockQ5_1>(row, importance, out);
        case Type::Q2_K:
            return standard_batches<BlockQ2_K>(row, importance, out);
        case Type::Q3_K:
            return standard_batches<BlockQ3_K>(row, importance, out);
        case Type::Q4_K:
            return standard_batches<BlockQ4_K>(row, importance, out);
        case Type::Q5_K:
            return standard_batches<BlockQ5_K>(row, importance, out);
        case Type::Q6_K:
            return standard_batches<BlockQ6_K>(row, importance, out);
        case Type::IQ4_NL:
            return standard_blocks<BlockIQ4_NL, 32>(row, importance, out);
        case Type::IQ4_XS:
            return standard_blocks<BlockIQ4_XS, kSuperBlock>(row, importance, out);
        case Type::IQ1_S:
            return standard_blocks<BlockIQ1_S, kSuperBlock>(row, importance, out);
        case Type::IQ1_M:
            return standard_blocks<BlockIQ1_M, kSuperBlock>(row, importance, out);
        case Type::IQ2_XXS:
            return standard_blocks<BlockIQ2_XXS, kSuperBlock>(row, importance, out);
        case Type::IQ2_XS:
            return standard_blocks<BlockIQ2_XS, kSuperBlock>(row, importance, out);
        case Type::IQ2_S:
            return standard_blocks<BlockIQ2_S, kSuperBlock>(row, importance, out);
        case Type::IQ3_XXS:
            return standard_blocks<BlockIQ3_XXS, kSuperBlock>(row, importance, out);
        case Type::IQ3_S:
            return standard_blocks<BlockIQ3_S, kSuperBlock>(row, importance, out);
        default:
            return quantize_row(type, row.data(), out, static_cast<int64_t>(row.size()));
    }
}

}  // namespace

bool can_quantize(Type type) noexcept {
    switch (type) {
        case Type::IQ1_S:
        case Type::IQ1_M:
        case Type::IQ2_XXS:
        case Type::IQ2_XS:
        case Type::IQ2_S:
        case Type::IQ3_XXS:
        case Type::IQ3_S:
            return false;
        default:
            return can_quantize_standard(type);
    }
}

bool can_quantize_standard(Type type) noexcept {
    const TypeTraits &t = traits(type);
    return t.supported && (t.quantized || type == Type::F32 || type == Type::F16 || type == Type::BF16);
}

bool standard_needs_importance(Type type) noexcept {
    return type == Type::IQ1_S || type == Type::IQ2_XXS || type == Type::IQ2_XS;
}

void quantize_row(Type type, const float *in, std::byte *blocks, int64_t n, Effort effort) {
    assert(can_quantize(type) && n % traits(type).block_size == 0);
    switch (type) {
        case Type::F32:
            std::memcpy(blocks, in, static_cast<size_t>(n) * sizeof(float));
            break;
        case Type::F16:
            convert(in, blocks, n, f32_to_f16);
            break;
        case Type::BF16:
            convert(in, blocks, n, f32_to_bf16);
            break;
        case Type::Q4_0:
            encode_blocks<BlockQ4_0, 32>(in, blocks, n, effort);
            break;
        case Type::Q4_1:
            encode_blocks<BlockQ4_1, 32>(in, blocks, n, effort);
            break;
        case Type::Q5_0:
            encode_blocks<BlockQ5_0, 32>(in, blocks, n, effort);
            break;
        case Type::Q5_1:
            encode_blocks<BlockQ5_1, 32>(in, blocks, n, effort);
            break;
        case Type::Q8_0:
            encode_blocks<BlockQ8_0, 32>(in, blocks, n, effort);
            break;
        case Type::Q2_K:
            encode_blocks<BlockQ2_K, kSuperBlock>(in, blocks, n, effort);
            break;
        case Type::Q3_K:
            encode_blocks<BlockQ3_K, kSuperBlock>(in, blocks, n, effort);
            break;
        case Type::Q4_K:
            encode_blocks<BlockQ4_K, kSuperBlock>(in, blocks, n, effort);
            break;
        case Type::Q5_K:
            encode_blocks<BlockQ5_K, kSuperBlock>(in, blocks, n, effort);
            break;
        case Type::Q6_K:
            encode_blocks<BlockQ6_K, kSuperBlock>(in, blocks, n, effort);
            break;
        case Type::IQ4_NL:
            encode_blocks<BlockIQ4_NL, 32>(in, blocks, n, effort);
            break;
        case Type::IQ4_XS:
            encode_blocks<BlockIQ4_XS, kSuperBlock>(in, blocks, n, effort);
            break;
        case Type::MXFP4:
            encode_blocks<BlockMXFP4, 32>(in, blocks, n, effort);
            break;
        case Type::NVFP4:
            encode_blocks<BlockNVFP4, 64>(in, blocks, n, effort);
            break;
        case Type::Q1_0:
            encode_blocks<BlockQ1_0, 128>(in, blocks, n, effort);
            break;
        case Type::Q2_0:
            encode_blocks<BlockQ2_0, 64>(in, blocks, n, effort);
            break;
        case Type::PQ2_0:
            encode_blocks<BlockPQ2_0, 128>(in, blocks, n, effort);
            break;
        case Type::PTQ1_0:
            encode_blocks<BlockPTQ1_0, 128>(in, blocks, n, effort);
            break;
        case Type::TQ1_0:
            encode_blocks<BlockTQ1_0, kSuperBlock>(in, blocks, n, effort);
            break;
        case Type::TQ2_0:
            encode_blocks<BlockTQ2_0, kSuperBlock>(in, blocks, n, effort);
            break;
        default:
            assert(false);
    }
}

void quantize_standard(Type type, std::span<const float> rows, int64_t columns,
                       std::span<const float> importance, std::byte *blocks) {
    assert(can_quantize_standard(type) && !(importance.empty() && standard_needs_importance(type)));
    assert(columns > 0 && columns % traits(type).block_size == 0);
    const auto width = static_cast<size_t>(columns);
    assert(rows.size() % width == 0 && (importance.empty() || importance.size() == width));
    for (size_t at = 0; at < rows.size(); at += width, blocks += row_bytes(type, columns))
        standard_row(type, rows.subspan(at, width), importance, blocks);
}

}  // namespace runnel::gguf
