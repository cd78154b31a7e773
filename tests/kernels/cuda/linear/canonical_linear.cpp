#include "tests/kernels/cuda/linear/canonical_linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "gguf/codebook.h"
#include "gguf/half.h"
#include "gguf/nvfp4.h"
#include "gguf/quantize.h"
#include "kernels/cuda/linear/linear.h"
#include "tests/kernels/cpu/random_blocks.h"
#include "tests/simt/simt.h"

namespace runnel::tests {
namespace {

constexpr uint16_t kHalfZero = 0, kHalfOne = 0x3c00;

// Weights of codebook formats are integers times d / parts_of(type).
int parts_of(gguf::Type type) {
    switch (type) {
        case gguf::Type::IQ1_S:
        case gguf::Type::IQ1_M:
        case gguf::Type::IQ2_XXS:
        case gguf::Type::IQ2_XS:
        case gguf::Type::IQ2_S:
            return 8;
        case gguf::Type::IQ3_XXS:
            return 4;
        default:
            return 1;
    }
}

// The integers of a block's weights: dequantized with its float scales replaced by 0 or 1 (MXFP4's exponent
// by that of 1, NVFP4's scales by 2, which it halves), without any rounding.
std::vector<int32_t> integers(gguf::Type type, std::span<const std::byte> block, uint16_t first,
                              uint16_t second) {
    std::vector<std::byte> changed(block.begin(), block.end());
    const ScaleOffsets offsets = scale_offsets(type);
    if (offsets.first >= 0) std::memcpy(changed.data() + offsets.first, &first, 2);
    if (offsets.second >= 0) std::memcpy(changed.data() + offsets.second, &second, 2);
    if (type == gguf::Type::MXFP4) changed[0] = std::byte{128};
    if (type == gguf::Type::NVFP4) std::fill_n(changed.begin(), 4, std::byte{0x40});
    if (type == gguf::Type::IQ1_M) put_iq1_m_scale(changed.data(), first);
    std::vector<float> values(gguf::traits(type).block_size);
    gguf::dequantize_row(type, changed.data(), values.data(), static_cast<int64_t>(values.size()));
    std::vector<int32_t> result;
    for (const float value : values)
        result.push_back(static_cast<int32_t>(value * static_cast<float>(parts_of(type))));
    return result;
}

float scale_at(std::span<const std::byte> block, int offset) {
    uint16_t bits;
    std::memcpy(&bits, block.data() + offset, 2);
    return gguf::f16_to_f32(bits);
}

// Sum of w x for the columns from `at` on.
float dot(const std::vector<int32_t> &w, const QuantizedRow &x, size_t at) {
    int64_t sum = 0;
    for (size_t k = 0; k < w.size(); ++k) sum += int64_t{w[k]} * x.values[at + k];
    return static_cast<float>(sum);
}

// Blocks of 32 to 128 with one scale: adds one block to b, in groups of 32.
float add_group(gguf::Type type, std::span<const std::byte> block, const QuantizedRow &x, size_t at,
                float b) {
    const ScaleOffsets offsets = scale_offsets(type);
    const float d = type == gguf::Type::MXFP4 ? std::ldexp(1.0f, static_cast<int>(block[0]) - 128)
                                              : scale_at(block, offsets.first);
    const std::vector<int32_t> w = integers(type, block, kHalfOne, kHalfZero);
    for (size_t first = 0; first < w.size(); first += 32) {
        const auto from = w.begin() + static_cast<std::ptrdiff_t>(first);
        b = std::fma(d, dot(std::vector<int32_t>(from, from + 32), x, at + first), b);
    }
    if (offsets.second >= 0)
        b = std::fma(scale_at(block, offsets.second), dot(std::vector<int32_t>(32, 1), x, at), b);
    return b;
}

// NVFP4: two groups of 32, whose halves have scales.
float add_halves(std::span<const std::byte> block, const QuantizedRow &x, size_t at, float b) {
    const std::vector<int32_t> w = integers(gguf::Type::NVFP4, block, 0, 0);
    for (size_t group = 0; group < 4; ++group) {
        const float d = gguf::ue4m3_to_f32(static_cast<uint8_t>(block[group])) * 0.5f;
        const auto first = w.begin() + 16 * static_cast<std::ptrdiff_t>(group);
        b = std::fma(d, dot(std::vector<int32_t>(first, first + 16), x, at + 16 * group), b);
    }
    return b;
}

// d of a block of 256.
float super_scale(gguf::Type type, std::span<const std::byte> block) {
    if (type != gguf::Type::IQ1_M)
        return scale_at(block, scale_offsets(type).first) / static_cast<float>(parts_of(type));
    gguf::BlockIQ1_M copy;
    std::memcpy(&copy, block.data(), sizeof copy);
    return gguf::f16_to_f32(gguf::iq1_m_scale(copy.scales)) / static_cast<float>(parts_of(type));
}

// b of a block of 256. Ternary types are computed as the tiles of Q2_K that they become: d (q + 1) - d.
float super_block(gguf::Type type, std::span<const std::byte> block, const QuantizedRow &x, size_t at) {
    const ScaleOffsets offsets = scale_offsets(type);
    const bool ternary = type == gguf::Type::TQ1_0 || type == gguf::Type::TQ2_0;
    std::vector<int32_t> w = integers(type, block, kHalfOne, kHalfZero);
    std::vector<int32_t> minimum;
    if (ternary) {
        for (int32_t &q : w) q += 1;
        minimum.assign(256, 1);
    } else if (offsets.second >= 0) {
        minimum = integers(type, block, kHalfZero, kHalfOne);
        for (int32_t &m : minimum) m = -m;
    }
    const float d = super_scale(type, block);
    float b = 0;
    if (kernels::cuda::has_integer_sums(kernels::cuda::tile_format(type))) {
        b = d * dot(w, x, at);  // scales included
    } else {
        // IQ4_XS. Moves the common factor of a group's integers, at least its scale, to d: both are exact.
        for (size_t first = 0; first < 256; first += 32) {
            std::vector<int32_t> group(w.begin() + static_cast<std::ptrdiff_t>(first),
                                       w.begin() + static_cast<std::ptrdiff_t>(first + 32));
            int32_t common = 0;
            for (const int32_t value : group) common = std::gcd(common, value);
            for (int32_t &value : group) value /= std::max(common, 1);
            b = std::fma(d * static_cast<float>(common), dot(group, x, at + first), b);
        }
    }
    if (!minimum.empty())
        b = std::fma(-(ternary ? d : scale_at(block, offsets.second)), dot(minimum, x, at), b);
    return b;
}

float block_range(gguf::Type type, std::span<const std::byte> row, const QuantizedRow &x, int64_t begin,
                  int64_t end) {
    const auto size = static_cast<size_t>(gguf::traits(type).block_bytes);
    float p = 0;
    for (auto block = static_cast<size_t>(begin); block < static_cast<size_t>(end); ++block) {
        if (gguf::traits(type).block_size == 256) {
            p = std::fma(x.scale[block], super_block(type, row.subspan(block * size, size), x, 256 * block),
                         p);
            continue;
        }
        float b = 0;
        const auto cols = static_cast<size_t>(gguf::traits(type).block_size);
        for (size_t at = 256 * block; at < std::min(x.values.size(), 256 * (block + 1)); at += cols) {
            const auto group = row.subspan(at / cols * size, size);
            b = type == gguf::Type::NVFP4 ? add_halves(group, x, at, b) : add_group(type, group, x, at, b);
        }
        p = std::fma(x.scale[block], b, p);
    }
    return p;
}

float float_range(const std::vector<float> &w, std::span<const float> x, int64_t begin, int64_t end) {
    float sums[4] = {};
    const auto last = static_cast<size_t>(std::min<int64_t>(256 * end, static_cast<int64_t>(w.size())));
    for (auto k = static_cast<size_t>(256 * begin); k < last; ++k)
        sums[k / 4 % 4] = std::fma(w[k], x[k], sums[k / 4 % 4]);
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// F16 and BF16: 16 columns at a time, in the order in which the emulator sums them: column 16 i + 4 t + 2 h
// before 16 i + 4 t + 2 h + 1, all t of h = 0 before those of h = 1.
float half_range(const std::vector<float> &w, const HalvedRow &x, int64_t begin, int64_t end) {
    float c = 0;
    const auto last = static_cast<size_t>(std::min<int64_t>(256 * end, static_cast<int64_t>(w.size())));
    for (auto step = static_cast<size_t>(256 * begin); step < last; step += 16)
        for (size_t i = 0; i < 16; ++i) {
            const size_t k = step + 4 * (i % 8 / 2) + 2 * (i / 8) + i % 2;
            if (k < last) c += w[k] * x.values[k];
        }
    return c * x.scale;
}

// A row of F16 or BF16 as binary16 numbers, and the factor of a BF16 row (halves.h).
std::vector<float> as_halves(gguf::Type type, std::vector<float> w, float &factor) {
    factor = 1;
    if (type != gguf::Type::BF16) return w;
    float largest = 0;
    for (const float value : w) largest = std::max(largest, std::fabs(value));
    factor = std::ldexp(1.0f, std::ilogb(largest) - 15);
    for (float &value : w) value = gguf::f16_to_f32(gguf::f32_to_f16(value / factor));
    return w;
}

}  // namespace

HalvedRow halve_reference(std::span<const float> x) {
    float largest = 0;
    for (const float value : x) largest = std::max(largest, std::fabs(value));
    if (largest < 0x1p-100f) return {std::vector<float>(x.size(), 0.0f), 0};
    HalvedRow row{{}, std::ldexp(1.0f, std::ilogb(largest) - 14)};
    for (const float value : x) row.values.push_back(gguf::f16_to_f32(gguf::f32_to_f16(value / row.scale)));
    return row;
}

QuantizedRow quantize_reference(std::span<const float> x) {
    QuantizedRow q;
    for (size_t at = 0; at < x.size(); at += 256) {
        const auto group = x.subspan(at, std::min<size_t>(256, x.size() - at));
        float largest = 0;
        for (const float value : group) largest = std::max(largest, std::fabs(value));
        const bool tiny = largest < 0x1p-100f;
        q.scale.push_back(tiny ? 0 : largest / 2047.0f);
        for (const float value : group)
            q.values.push_back(static_cast<int32_t>(std::rint(value * (tiny ? 0 : 2047.0f / largest))));
    }
    return q;
}

double rounding_bound(gguf::Type type, std::span<const float> w, std::span<const float> x) {
    const QuantizedRow q = quantize_reference(x);
    double size = 0, noise = 0;
    for (size_t k = 0; k < w.size(); ++k) {
        const double product = static_cast<double>(w[k]) * static_cast<double>(x[k]);
        // The rounding step of x times w: x has the group's scale as its step, or 11 bits of its own.
        const double step = gguf::traits(type).quantized
                                ? static_cast<double>(w[k]) * static_cast<double>(q.scale[k / 256])
                                : product * 0x1p-10;
        size += product * product;
        noise += step * step / 12;
    }
    return 6 * std::sqrt(noise) + 100 * 0x1p-24 * std::sqrt(size);
}

size_t not_canonical(gguf::Type type, std::span<const float> y, std::span<const float> expected) {
    if (y.size() != expected.size()) return std::max(y.size(), expected.size());
    const bool exact = simt::emulated() || (type != gguf::Type::F16 && type != gguf::Type::BF16);
    float largest = 0;
    for (const float value : expected) largest = std::max(largest, std::fabs(value));
    size_t count = 0;
    for (size_t i = 0; i < y.size(); ++i)
        count += y[i] != expected[i] && (exact || !(std::fabs(y[i] - expected[i]) <= 1e-5f * largest));
    return count;
}

float canonical_dot(gguf::Type type, std::span<const std::byte> row, std::span<const float> x,
                    bool one_range) {
    const int64_t blocks = kernels::cuda::col_blocks(static_cast<int64_t>(x.size()));
    const int64_t warps = one_range ? 1 : kernels::column_ranges(blocks);
    const bool quantized = gguf::traits(type).quantized;
    const QuantizedRow q = quantize_reference(x);
    const bool halves = type == gguf::Type::F16 || type == gguf::Type::BF16;
    const HalvedRow h = halves ? halve_reference(x) : HalvedRow{};
    std::vector<float> w(quantized ? 0 : x.size());
    if (!quantized) gguf::dequantize_row(type, row.data(), w.data(), static_cast<int64_t>(w.size()));
    float factor = 1, y = 0;
    if (halves) w = as_halves(type, std::move(w), factor);
    for (int64_t i = 0; i < warps; ++i) {
        const int64_t begin = i * blocks / warps, end = (i + 1) * blocks / warps;
        const float p = quantized ? block_range(type, row, q, begin, end)
                        : halves  ? half_range(w, h, begin, end) * factor
                                  : float_range(w, x, begin, end);
        y = i == 0 ? p : y + p;
    }
    return y;
}

}  // namespace runnel::tests
