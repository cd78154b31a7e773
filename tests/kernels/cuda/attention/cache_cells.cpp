#include "tests/kernels/cuda/attention/cache_cells.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "gguf/block.h"
#include "gguf/half.h"

namespace runnel::tests {
namespace {

using kernels::CacheType;

using kernels::has_fifth_bit, kernels::has_minimum, kernels::has_nibbles, kernels::has_scales;

// Binary16 numbers per block of a cell.
size_t scales_per_block(CacheType type) {
    return !has_scales(type) ? 0 : has_minimum(type) ? 2 : 1;
}

// The level of code 0.
int least_level(CacheType type) {
    return type == CacheType::Q8_0 ? -128 : type == CacheType::Q4_0 ? -8 : type == CacheType::Q5_0 ? -16 : 0;
}

// What the scale is multiplied by.
int level_of(CacheType type, int code) {
    return type == CacheType::IQ4_NL ? gguf::kIQ4Values[code] : code + least_level(type);
}

double e4m3(int byte) {
    const int exponent = byte >> 3 & 15, mantissa = byte & 7;
    if ((byte & 0x7f) == 0x7f) return std::nan("");
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 7 - 3);
    return byte & 0x80 ? -magnitude : magnitude;
}

// Offsets of a cell's values, of its scales and of its fifth bits.
struct Place {
    size_t values, scales, fifth_bits;
};
Place place(CacheType type, int32_t dims, size_t page, int32_t index) {
    const size_t cell_bytes = kernels::cache_row_bytes(type, dims);
    const size_t blocks = static_cast<size_t>((dims + 31) / 32),
                 scale_bytes = blocks * 2 * scales_per_block(type),
                 fifth_bytes = has_fifth_bit(type) ? blocks * 4 : 0,
                 value_bytes = cell_bytes - scale_bytes - fifth_bytes;
    const size_t begin = page * 32 * cell_bytes, at = static_cast<size_t>(index);
    return {begin + at * value_bytes, begin + 32 * value_bytes + at * scale_bytes,
            begin + 32 * (value_bytes + scale_bytes) + at * fifth_bytes};
}

// For nibbles: the byte of a cell with dimension d, and whether it is in the high nibble.
size_t nibble_byte(int32_t d) {
    const int nibble = d % 2 * 4 + d % 8 / 2;
    return static_cast<size_t>(d / 8 * 4 + nibble / 2);
}
bool high_nibble(int32_t d) {
    return d % 8 / 2 % 2 == 1;
}

}  // namespace

double round_f16(double x) {
    return double{gguf::f16_to_f32(gguf::f32_to_f16(static_cast<float>(x)))};
}
double round_bf16(double x) {
    return double{gguf::bf16_to_f32(gguf::f32_to_bf16(static_cast<float>(x)))};
}

CacheCell random_cell(testing::Random &random, CacheType type, int32_t dims) {
    CacheCell cell{type, {}, {}};
    for (int32_t d = 0; d < dims; ++d) {
        if (has_scales(type) && d % 32 == 0) {
            const bool wide = type == CacheType::Q8_0 || type == CacheType::IQ4_NL;
            const float unit = wide                  ? 0.02f
                               : has_fifth_bit(type) ? 0.15f
                                                     : 0.3f,
                        sign = random.below(2) ? 1.0f : -1.0f;
            const bool is_signed = has_nibbles(type) && !has_minimum(type);
            cell.scales.push_back(
                gguf::f32_to_f16((is_signed ? sign : 1) * unit * (0.5f + random.uniform())));
            if (has_minimum(type)) cell.scales.push_back(gguf::f32_to_f16(-1 - 2 * random.uniform()));
        }
        switch (type) {
            case CacheType::F16:
                cell.codes.push_back(gguf::f32_to_f16(random.normal()));
                break;
            case CacheType::BF16:
                cell.codes.push_back(gguf::f32_to_bf16(random.normal()));
                break;
            case CacheType::Q8_0:
                cell.codes.push_back(1 + static_cast<int>(random.below(255)));
                break;
            case CacheType::FP8:  // below 4
                cell.codes.push_back(static_cast<int>(random.below(0x48) | random.below(2) << 7));
                break;
            default:
                cell.codes.push_back(static_cast<int>(random.below(has_fifth_bit(type) ? 32 : 16)));
        }
    }
    return cell;
}

double value_of(const CacheCell &cell, int32_t d) {
    const int code = cell.codes[static_cast<size_t>(d)];
    switch (cell.type) {
        case CacheType::F16:
            return double{gguf::f16_to_f32(static_cast<uint16_t>(code))};
        case CacheType::BF16:
            return double{gguf::bf16_to_f32(static_cast<uint16_t>(code))};
        case CacheType::FP8:
            return e4m3(code);
        default: {  // (The sum is exact in double.)
            const size_t block = static_cast<size_t>(d) / 32, count = scales_per_block(cell.type);
            const auto number = [&](size_t i) {
                return double{gguf::f16_to_f32(cell.scales[count * block + i])};
            };
            return round_f16(number(0) * level_of(cell.type, code) + (count > 1 ? number(1) : 0));
        }
    }
}

void write_cell(const CacheCell &cell, std::vector<unsigned char> &cache, size_t page, int32_t index) {
    const auto dims = static_cast<int32_t>(cell.codes.size());
    const Place at = place(cell.type, dims, page, index);
    const int32_t padded = cell.type == CacheType::F16 ? dims : (dims + 31) / 32 * 32;
    for (int32_t d = 0; d < padded; ++d) {
        const int code = d < dims ? cell.codes[static_cast<size_t>(d)] : -std::min(0, least_level(cell.type));
        unsigned char *values = cache.data() + at.values;
        if (has_nibbles(cell.type)) {
            unsigned char &byte = values[nibble_byte(d)];
            const int other = high_nibble(d) ? byte & 0x0f : byte & 0xf0;
            byte = static_cast<unsigned char>(other | (code & 15) << (high_nibble(d) ? 4 : 0));
            if (!has_fifth_bit(cell.type)) continue;
            unsigned char &bits = cache[at.fifth_bits + static_cast<size_t>(d) / 8];
            bits = static_cast<unsigned char>((bits & ~(1 << d % 8)) | (code >> 4) << d % 8);
        } else if (cell.type == CacheType::Q8_0 || cell.type == CacheType::FP8) {
            values[d] = static_cast<unsigned char>(code);
        } else {
            const auto bits = static_cast<uint16_t>(code);
            std::memcpy(values + 2 * d, &bits, 2);
        }
    }
    if (!cell.scales.empty())
        std::memcpy(cache.data() + at.scales, cell.scales.data(), 2 * cell.scales.size());
}

CacheCell read_cell(CacheType type, int32_t dims, const std::vector<unsigned char> &cache, size_t page,
                    int32_t index) {
    CacheCell cell{type, {}, {}};
    const Place at = place(type, dims, page, index);
    const unsigned char *values = cache.data() + at.values;
    for (int32_t d = 0; d < dims; ++d) {
        if (has_nibbles(type)) {
            const int nibble = values[nibble_byte(d)] >> (high_nibble(d) ? 4 : 0) & 15;
            const int fifth =
                has_fifth_bit(type) ? cache[at.fifth_bits + static_cast<size_t>(d) / 8] >> d % 8 & 1 : 0;
            cell.codes.push_back(nibble | fifth << 4);
        } else if (type == CacheType::Q8_0 || type == CacheType::FP8) {
            cell.codes.push_back(values[d]);
        } else {
            uint16_t bits;
            std::memcpy(&bits, values + 2 * d, 2);
            cell.codes.push_back(bits);
        }
    }
    if (has_scales(type)) {
        cell.scales.resize(static_cast<size_t>((dims + 31) / 32) * scales_per_block(type));
        std::memcpy(cell.scales.data(), cache.data() + at.scales, 2 * cell.scales.size());
    }
    return cell;
}

namespace {

// Whether a value of d times the level of `code` (plus m) is the nearest one to x. Exact values of its block: the largest
// in magnitude, the least and the greatest.
struct Extremes {
    double largest = 0, low = 1e30, high = -1e30;
};
bool is_rounded(CacheType type, int code, double d, double m, double x, const Extremes &of) {
    const int codes = has_fifth_bit(type) ? 32 : has_nibbles(type) ? 16 : 256;
    double best = 1e30;  // the least error
    for (int other = type == CacheType::Q8_0 ? 1 : 0; other < codes; ++other)
        best = std::min(best, std::abs(d * level_of(type, other) + m - x));
    if (std::abs(d * level_of(type, code) + m - x) > best + 2e-3 * std::abs(d)) return false;
    if (type == CacheType::IQ4_NL) return std::abs(d) >= of.largest / 160 && std::abs(d) <= of.largest / 90;
    if (has_minimum(type))
        return std::abs(m - of.low) <= 1e-3 * of.largest &&
               std::abs(d - (of.high - of.low) / (codes - 1)) <= 1e-3 * of.largest;
    return std::abs(std::abs(d) - of.largest / (has_nibbles(type) ? codes / 2 : 127)) <= 1e-3 * of.largest;
}

bool is_near(CacheType type, double value, double x) {
    const int bits = type == CacheType::F16 ? 11 : type == CacheType::BF16 ? 8 : 4;
    const double least = type == CacheType::FP8 ? 0x1p-10 : 1e-7;
    return std::abs(value - x) <= std::max(std::ldexp(std::abs(x), -bits), least) * 1.001 + 2e-6;
}

}  // namespace

void check_cell(const CacheCell &cell, const reference::Row &exact) {
    const auto dims = static_cast<int32_t>(exact.size());
    for (int32_t first = 0; first < dims; first += 32) {
        const int32_t end = std::min(dims, first + 32);
        Extremes of;
        for (int32_t d = first; d < end; ++d) {
            const double x = exact[static_cast<size_t>(d)];
            of = {std::max(of.largest, std::abs(x)), std::min(of.low, x), std::max(of.high, x)};
        }
        int32_t wrong = -1;
        for (int32_t d = first; d < end; ++d) {
            const auto at = static_cast<size_t>(d);
            const size_t count = scales_per_block(cell.type);
            const auto number = [&](size_t i) {
                return count > i ? double{gguf::f16_to_f32(cell.scales[count * (at / 32) + i])} : 0;
            };
            const bool right = has_scales(cell.type) ? is_rounded(cell.type, cell.codes[at], number(0),
                                                                  number(1), exact[at], of)
                                                     : is_near(cell.type, value_of(cell, d), exact[at]);
            if (!right) wrong = d;
        }
        REQUIRE(wrong == -1);
    }
}

}  // namespace runnel::tests
