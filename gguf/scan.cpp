#include "gguf/scan.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "gguf/codebook.h"
#include "gguf/nvfp4.h"

namespace runnel::gguf {
namespace {

template <class T>
T load(const std::byte *at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

// All exponent bits set: NaN or infinite.
bool broken_f16(uint16_t h) {
    return (h & 0x7c00u) == 0x7c00u;
}
bool broken_bf16(uint16_t h) {
    return (h & 0x7f80u) == 0x7f80u;
}
bool broken_f32(uint32_t f) {
    return (f & 0x7f800000u) == 0x7f800000u;
}
bool broken_f64(uint64_t f) {
    return (f & 0x7ff0000000000000u) == 0x7ff0000000000000u;
}

// UE4M3 has no sign, and NaN is 0x7f: quantizers write neither.
bool broken_nvfp4(const std::byte *block) {
    return std::any_of(block, block + sizeof BlockNVFP4::d, [](std::byte d) { return d >= std::byte{0x7f}; });
}

// Counts the blocks of `size` bytes for which broken(block) is true.
template <class Broken>
void count(std::span<const std::byte> data, size_t size, DataScan &found, Broken broken) {
    for (size_t at = 0; at + size <= data.size(); at += size) {
        if (!broken(data.data() + at)) continue;
        if (!found.first_broken) found.first_broken = found.blocks + at / size;
        ++found.not_finite;
    }
}

// Byte offsets of a format's binary16 scales within a block; -1: none.
struct Scales {
    int first, second;
};
Scales scales_of(Type type) {
    switch (type) {
        case Type::Q4_1:
        case Type::Q5_1:
        case Type::Q8_1:
        case Type::Q4_K:
        case Type::Q5_K:
            return {0, 2};
        case Type::Q2_K:
            return {offsetof(BlockQ2_K, d), offsetof(BlockQ2_K, dmin)};
        case Type::Q3_K:
            return {offsetof(BlockQ3_K, d), -1};
        case Type::Q6_K:
            return {offsetof(BlockQ6_K, d), -1};
        case Type::TQ1_0:
            return {offsetof(BlockTQ1_0, d), -1};
        case Type::TQ2_0:
            return {offsetof(BlockTQ2_0, d), -1};
        case Type::PTQ1_0:
            return {offsetof(BlockPTQ1_0, d), -1};
        case Type::Q1_0:
        case Type::Q2_0:
        case Type::PQ2_0:
        case Type::Q4_0:
        case Type::Q5_0:
        case Type::Q8_0:
        case Type::IQ4_NL:
        case Type::IQ4_XS:
        case Type::IQ1_S:
        case Type::IQ2_XXS:
        case Type::IQ2_XS:
        case Type::IQ2_S:
        case Type::IQ3_XXS:
        case Type::IQ3_S:
            return {0, -1};
        default:
            return {-1, -1};
    }
}

void count_broken(Type type, std::span<const std::byte> data, DataScan &found) {
    const size_t size = traits(type).block_bytes;
    switch (type) {
        case Type::F32:
        case Type::Q8_K:  // its scale is a float, at the beginning
            return count(data, size, found, [](const std::byte *b) { return broken_f32(load<uint32_t>(b)); });
        case Type::F64:
            return count(data, size, found, [](const std::byte *b) { return broken_f64(load<uint64_t>(b)); });
        case Type::F16:
            return count(data, size, found, [](const std::byte *b) { return broken_f16(load<uint16_t>(b)); });
        case Type::BF16:
            return count(data, size, found,
                         [](const std::byte *b) { return broken_bf16(load<uint16_t>(b)); });
        case Type::MXFP4:  // 255 is NaN, and from 253 on 12 * 2^(e - 128) overflows a float
            return count(data, size, found, [](const std::byte *b) { return *b >= std::byte{253}; });
        case Type::NVFP4:
            return count(data, size, found, broken_nvfp4);
        case Type::IQ1_M:
            return count(data, size, found, [](const std::byte *b) {
                return broken_f16(iq1_m_scale(reinterpret_cast<const BlockIQ1_M *>(b)->scales));
            });
        default:
            break;
    }
    const Scales scales = scales_of(type);
    if (scales.first < 0) return;
    // A format with one scale checks it twice.
    const int first = scales.first, second = scales.second < 0 ? first : scales.second;
    count(data, size, found, [=](const std::byte *b) {
        return broken_f16(load<uint16_t>(b + first)) || broken_f16(load<uint16_t>(b + second));
    });
}

bool all_zero(std::span<const std::byte> page) {
    return page.front() == std::byte{0} && std::memcmp(page.data(), page.data() + 1, page.size() - 1) == 0;
}

}  // namespace

void DataScan::add(const DataScan &next) {
    if (!first_broken && next.first_broken) first_broken = blocks + *next.first_broken;
    blocks += next.blocks;
    not_finite += next.not_finite;
    zero_tail = next.zero_pages == next.pages ? zero_tail + next.pages : next.zero_tail;
    pages += next.pages;
    zero_pages += next.zero_pages;
}

DataScan scan(Type type, std::span<const std::byte> data) {
    DataScan found;
    count_broken(type, data, found);
    found.blocks = data.size() / traits(type).block_bytes;
    for (size_t at = 0; at + kScanPage <= data.size(); at += kScanPage) {
        ++found.pages;
        const bool zero = all_zero(data.subspan(at, kScanPage));
        found.zero_pages += zero;
        found.zero_tail = zero ? found.zero_tail + 1 : 0;
    }
    return found;
}

}  // namespace runnel::gguf
