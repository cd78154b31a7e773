#include "tests/kernels/cuda/attention/cache_cells.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "gguf/half.h"

namespace runnel::tests {
namespace {

using kernels::CacheType;

bool scaled(CacheType type) {
    return type == CacheType::Q8_0 || type == CacheType::Q4_0;
}

double e4m3(int byte) {
    const int exponent = byte >> 3 & 15, mantissa = byte & 7;
    if ((byte & 0x7f) == 0x7f) return std::nan("");
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 7 - 3);
    return byte & 0x80 ? -magnitude : magnitude;
}

// Offsets of a cell's values and of its scales.
struct Place {
    size_t values, scales;
};
Place place(CacheType type, int32_t dims, size_t page, int32_t index) {
    const size_t cell_bytes = kernels::cache_row_bytes(type, dims);
    const size_t scale_bytes = scaled(type) ? static_cast<size_t>((dims + 31) / 32 * 2) : 0;
    const size_t begin = page * 32 * cell_bytes, at = static_cast<size_t>(index);
    return {begin + at * (cell_bytes - scale_bytes),
            begin + 32 * (cell_bytes - scale_bytes) + at * scale_bytes};
}

// For Q4_0: the byte of a cell with dimension d, and whether it is in the high nibble.
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
        if (scaled(type) && d % 32 == 0) {
            const float unit = type == CacheType::Q8_0 ? 0.02f : 0.3f, sign = random.below(2) ? 1.0f : -1.0f;
            cell.scales.push_back(
                gguf::f32_to_f16((type == CacheType::Q4_0 ? sign : 1) * unit * (0.5f + random.uniform())));
        }
        switch (type) {
            case CacheType::F16:
                cell.codes.push_back(gguf::f32_to_f16(random.normal()));
                break;
            case CacheType::BF16:
                cell.codes.push_back(gguf::f32_to_bf16(random.normal()));
                break;
            case CacheType::Q8_0:
                cell.codes.push_back(static_cast<int>(random.below(255)) - 127);
                break;
            case CacheType::Q4_0:
                cell.codes.push_back(static_cast<int>(random.below(16)) - 8);
                break;
            case CacheType::FP8:  // below 4
                cell.codes.push_back(static_cast<int>(random.below(0x48) | random.below(2) << 7));
                break;
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
        default:
            return round_f16(double{gguf::f16_to_f32(cell.scales[static_cast<size_t>(d) / 32])} * code);
    }
}

void write_cell(const CacheCell &cell, std::vector<unsigned char> &cache, size_t page, int32_t index) {
    const auto dims = static_cast<int32_t>(cell.codes.size());
    const Place at = place(cell.type, dims, page, index);
    const int32_t padded = cell.type == CacheType::F16 ? dims : (dims + 31) / 32 * 32;
    for (int32_t d = 0; d < padded; ++d) {
        const int code = d < dims ? cell.codes[static_cast<size_t>(d)] : 0;
        unsigned char *values = cache.data() + at.values;
        if (cell.type == CacheType::Q4_0) {
            unsigned char &byte = values[nibble_byte(d)];
            const int other = high_nibble(d) ? byte & 0x0f : byte & 0xf0;
            byte = static_cast<unsigned char>(other | (code + 8) << (high_nibble(d) ? 4 : 0));
        } else if (cell.type == CacheType::Q8_0 || cell.type == CacheType::FP8) {
            values[d] = static_cast<unsigned char>(code + (cell.type == CacheType::Q8_0 ? 128 : 0));
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
        if (type == CacheType::Q4_0) {
            cell.codes.push_back((values[nibble_byte(d)] >> (high_nibble(d) ? 4 : 0) & 15) - 8);
        } else if (type == CacheType::Q8_0 || type == CacheType::FP8) {
            cell.codes.push_back(values[d] - (type == CacheType::Q8_0 ? 128 : 0));
        } else {
            uint16_t bits;
            std::memcpy(&bits, values + 2 * d, 2);
            cell.codes.push_back(bits);
        }
    }
    if (scaled(type)) {
        cell.scales.resize(static_cast<size_t>((dims + 31) / 32));
        std::memcpy(cell.scales.data(), cache.data() + at.scales, 2 * cell.scales.size());
    }
    return cell;
}

namespace {

// Whether `code` is the rounded value of x as a multiple of `step`; `largest` is that of the block.
bool is_rounded(CacheType type, int code, double step, double x, double largest) {
    const bool nibbles = type == CacheType::Q4_0;
    const double wanted = std::clamp(x / step, nibbles ? -8.0 : -127.0, nibbles ? 7.0 : 127.0);
    return std::abs(std::abs(step) - largest / (nibbles ? 8 : 127)) <= 1e-3 * largest &&
           std::abs(code - wanted) <= 0.5 + 1e-3;
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
        double largest = 0;
        for (int32_t d = first; d < end; ++d)
            largest = std::max(largest, std::abs(exact[static_cast<size_t>(d)]));
        int32_t wrong = -1;
        for (int32_t d = first; d < end; ++d) {
            const auto at = static_cast<size_t>(d);
            const bool right = scaled(cell.type) ? is_rounded(cell.type, cell.codes[at],
                                                              double{gguf::f16_to_f32(cell.scales[at / 32])},
                                                              exact[at], largest)
                                                 : is_near(cell.type, value_of(cell, d), exact[at]);
            if (!right) wrong = d;
        }
        REQUIRE(wrong == -1);
    }
}

}  // namespace runnel::tests
