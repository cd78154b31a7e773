// Reads weights back from tiles, one at a time, following the description in kernels/cuda/linear/tiles.h: an
// independent inverse of repack.h.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "gguf/codebook.h"
#include "gguf/half.h"
#include "gguf/nvfp4.h"
#include "kernels/cuda/linear/tiles.h"
#include "kernels/cuda/upload/repack.h"

namespace runnel::tests {

// All words of a matrix, computed on the host.
inline std::vector<uint32_t> tiles_of(gguf::Type type, const std::vector<std::byte> &bytes, int64_t rows,
                                      int64_t cols) {
    const auto row_bytes = static_cast<int64_t>(gguf::row_bytes(type, cols));
    kernels::cuda::RawRows raw{type, reinterpret_cast<const uint8_t *>(bytes.data()), row_bytes, rows, cols};
    std::vector<uint8_t> exponents;
    if (type == gguf::Type::BF16)
        for (int64_t row = 0; row < rows; ++row) exponents.push_back(kernels::cuda::row_exponent(raw, row));
    raw.exponents = exponents.data();
    const int64_t words = kernels::cuda::row_tile_bytes(kernels::cuda::tile_format(type), cols) / 4;
    std::vector<uint32_t> tiles;
    for (int64_t tile = 0; tile < kernels::cuda::row_tiles(rows); ++tile)
        for (int64_t word = 0; word < words; ++word)
            tiles.push_back(kernels::cuda::tile_word(raw, tile, word));
    return tiles;
}

class TileReader {
  public:
    TileReader(kernels::cuda::TileFormat format, const std::vector<uint32_t> &tiles, int64_t cols)
        : format_(format), bytes_(reinterpret_cast<const uint8_t *>(tiles.data())), cols_(cols) {}

    // The value, with the float operations of ggml's dequantization.
    float value(int64_t row, int64_t col) const {
        using kernels::cuda::TileFormat;
        const Place p = place(row, col);
        const int group = p.k / 32, pair = p.g * 2 + p.r;
        const bool plain =
            format_ == TileFormat::F32 || format_ == TileFormat::F16 || format_ == TileFormat::BF16;
        const bool coded = !plain && !kernels::cuda::has_codebook(format_);
        const auto code = coded ? static_cast<float>(this->code(row, col)) : 0.0f;
        const auto d32 = [&] { return half(p.block + 2 * (8 * p.row + group)); };
        const auto m32 = [&] { return half(p.block + p.layout.scales2 + 2 * (8 * p.row + group)); };
        switch (format_) {
            case TileFormat::F32: {
                float x;
                std::memcpy(
                    &x, p.main + p.k / 16 * 1024 + p.r * 512 + (p.g * 4 + p.k % 16 / 4) * 16 + p.k % 4 * 4,
                    4);
                return x;
            }
            case TileFormat::F16:
                return gguf::f16_to_f32(plain_half(p));
            case TileFormat::BF16:
                return std::ldexp(gguf::f16_to_f32(plain_half(p)), p.block[4 * p.g + p.r] - 142);
            case TileFormat::Q4_0:
                return (code - 8) * d32();
            case TileFormat::Q5_0:
                return (code - 16) * d32();
            case TileFormat::Q4_1:
            case TileFormat::Q5_1:
                return code * d32() + m32();
            case TileFormat::Q8_0:
                return static_cast<float>(static_cast<int8_t>(this->code(row, col))) * d32();
            case TileFormat::IQ4_NL:
                return d32() * static_cast<float>(gguf::kIQ4Values[this->code(row, col)]);
            case TileFormat::MXFP4:
                return std::ldexp(1.0f, p.block[8 * p.row + group] - 128) *
                       static_cast<float>(gguf::kMXFP4Values[this->code(row, col)]);
            case TileFormat::NVFP4: {
                const uint8_t bits = p.block[16 * p.row + p.k / 16];  // 0x7f is 240; ggml writes 0xff
                return 0.5f * gguf::ue4m3_to_f32(bits == 0x7f ? 0xff : bits) *
                       static_cast<float>(gguf::kMXFP4Values[this->code(row, col)]);
            }
            case TileFormat::IQ1:
            case TileFormat::IQ2_XXS:
            case TileFormat::IQ2_XS:
            case TileFormat::IQ2_S:
            case TileFormat::IQ3_XXS:
            case TileFormat::IQ3_S:
                return codebook_value(p);
            case TileFormat::Q2_K: {
                const int scale = p.block[16 * p.row + p.k / 16];
                const uint8_t *d = p.block + p.layout.scales2 + 4 * pair;
                return half(d) * static_cast<float>(scale & 15) * code -
                       half(d + 2) * static_cast<float>(scale >> 4);
            }
            case TileFormat::Q3_K: {
                const uint8_t *s = p.block + 12 * pair;
                const int i = p.k / 16, low = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
                const int scale = low | (s[8 + i % 4] >> (2 * (i / 4)) & 3) << 4;
                return half(p.block + p.layout.scales2 + 2 * pair) * static_cast<float>(scale - 32) *
                       (code - 4);
            }
            case TileFormat::Q4_K:
            case TileFormat::Q5_K: {
                const uint8_t *h = p.block + 16 * p.row, *s = h + 4;
                const int j = group % 4;
                const int scale = group < 4 ? s[j] & 63 : (s[8 + j] & 15) | s[j] >> 6 << 4;
                const int min = group < 4 ? s[4 + j] & 63 : s[8 + j] >> 4 | s[4 + j] >> 6 << 4;
                return half(h) * static_cast<float>(scale) * code - half(h + 2) * static_cast<float>(min);
            }
            case TileFormat::Q6_K: {
                const auto scale = static_cast<int8_t>(p.block[16 * p.row + p.k / 16]);
                return half(p.block + p.layout.scales2 + 2 * pair) * static_cast<float>(scale) * (code - 32);
            }
            case TileFormat::IQ4_XS: {
                const uint8_t *h = p.block + 16 * p.g;
                const int low = h[4 * p.r + group / 2] >> (group % 2 * 4) & 15;
                const int high = (h[8 + 2 * p.r] | h[9 + 2 * p.r] << 8) >> (2 * group) & 3;
                return half(h + 12 + 2 * p.r) * static_cast<float>((low | high << 4) - 32) *
                       static_cast<float>(gguf::kIQ4Values[this->code(row, col)]);
            }
        }
        return NAN;
    }

    uint32_t code(int64_t row, int64_t col) const {
        using kernels::cuda::TileFormat;
        const Place p = place(row, col);
        const int i = p.k % 4, group = p.k / 32, t = p.k % 16 / 4;
        const int a = p.r + 2 * (p.k % 32 / 16), lane = 4 * p.g + t, g16 = p.k / 16;
        const uint8_t *high = p.block + p.layout.high;
        // Called for formats that have nibbles.
        const auto nibble = [&] {
            return p.main[group / 2 * 512 + lane * 16 + a * 4 + i] >> (group % 2 * 4) & 15;
        };
        const auto bit4 = [&] { return high[lane * 16 + group / 2 * 4 + i] >> (group % 2 * 4 + a) & 1; };
        switch (format_) {
            case TileFormat::Q8_0:
                return p.main[group * 512 + lane * 16 + a * 4 + i];
            case TileFormat::Q2_K:
            case TileFormat::Q3_K: {
                const int h = g16 / 8, w = g16 / 4 % 2, j = g16 % 4;
                const int low = p.main[h * 512 + lane * 16 + (2 * w + p.r) * 4 + i] >> (2 * j) & 3;
                if (format_ == TileFormat::Q2_K) return static_cast<uint32_t>(low);
                return static_cast<uint32_t>(low | (high[lane * 16 + (2 * h + p.r) * 4 + i] >> (g16 % 8) & 1)
                                                       << 2);
            }
            case TileFormat::Q5_0:
            case TileFormat::Q5_1:
            case TileFormat::Q5_K:
                return static_cast<uint32_t>(nibble() | bit4() << 4);
            case TileFormat::Q6_K: {
                const int chunk = group / 2, s = group % 2;
                const uint8_t bits = high[chunk / 2 * 512 + lane * 16 + (chunk % 2 * 2 + s) * 4 + i];
                return static_cast<uint32_t>(nibble() | (bits >> (2 * a) & 3) << 4);
            }
            default:
                return static_cast<uint32_t>(nibble());
        }
    }

  private:
    struct Place {
        const uint8_t *block, *main;
        kernels::cuda::TileLayout layout;
        int k, row, g, r;  // column in the block; row in the tile = g + 8 r
    };
    Place place(int64_t row, int64_t col) const {
        const auto layout = kernels::cuda::tile_layout(format_);
        const uint8_t *block = bytes_ + row / 16 * kernels::cuda::row_tile_bytes(format_, cols_) +
                               col / 256 * kernels::cuda::block_bytes(format_);
        const int in = static_cast<int>(row % 16);
        return {block, block + layout.side, layout, static_cast<int>(col % 256), in, in % 8, in / 8};
    }
    // Byte k of the entry, with its signs applied.
    float codebook_value(const Place &p) const {
        using kernels::cuda::TileFormat;
        const int t = p.k % 16 / 4, lane = 4 * p.g + t, chunk = p.k / 64, s = p.k / 32 % 2, i = p.k % 4;
        const int a = p.r + 2 * (p.k % 32 / 16), j = 4 * s + a, lane_pair = lane / 2, row = 2 * p.g + p.r;
        const bool quads = format_ == TileFormat::IQ3_XXS || format_ == TileFormat::IQ3_S;
        const auto word = [&](int offset, int at) {
            uint32_t w;
            std::memcpy(&w, p.block + offset + 4 * at, sizeof w);
            return w;
        };
        const auto bit = [&](int offset, int at) { return word(offset, at / 32) >> (at % 32) & 1; };
        const int high = p.layout.high;
        size_t index = p.main[chunk * p.layout.chunk + (quads ? lane : lane_pair) * 8 + 4 * s + a];
        if (format_ == TileFormat::IQ2_XS) index |= bit(high, 32 * lane_pair + 8 * chunk + j) << 8;
        if (format_ == TileFormat::IQ3_S) index |= bit(high, 32 * lane + 8 * chunk + j) << 8;
        if (format_ == TileFormat::IQ2_S)
            for (int b = 0; b < 2; ++b)
                index |= bit(high, 64 * lane_pair + 2 * (8 * chunk + j) + b) << (8 + b);
        if (format_ == TileFormat::IQ1)
            for (int b = 0; b < 3; ++b)
                index |= bit(high, 128 * lane_pair + 32 * chunk + 4 * j + b) << (8 + b);
        const bool of_16 =
            format_ == TileFormat::IQ1 || format_ == TileFormat::IQ2_XS || format_ == TileFormat::IQ2_S;
        const int group = of_16 ? 16 * row + p.k / 16 : 8 * row + p.k / 32;
        const float d = half(p.block + p.layout.scales2 + 2 * row) *
                        static_cast<float>(2 * (p.block[group / 2] >> (4 * (group % 2)) & 15) + 1);
        const auto eight = [&](const auto &grid) {
            return static_cast<float>(grid[index] >> (8 * (p.k % 8)) & 255);
        };
        const auto four = [&](const auto &grid) { return static_cast<float>(grid[index] >> (8 * i) & 255); };
        if (format_ == TileFormat::IQ1)
            return d * (eight(gguf::kGridIQ1) - 1 +
                        (bit(high, 128 * lane_pair + 32 * chunk + 4 * j + 3) ? -0.125f : 0.125f));
        const int at = 128 * lane + 32 * chunk + (quads ? 8 * i + j : 16 * s + 4 * i + a);
        const float sign = bit(p.layout.signs, at) ? -1.0f : 1.0f;
        switch (format_) {
            case TileFormat::IQ2_XXS:
                return sign * d * 0.125f * eight(gguf::kGridIQ2_XXS);
            case TileFormat::IQ2_XS:
                return sign * d * 0.125f * eight(gguf::kGridIQ2_XS);
            case TileFormat::IQ2_S:
                return sign * d * 0.125f * eight(gguf::kGridIQ2_S);
            case TileFormat::IQ3_XXS:
                return sign * d * 0.25f * four(gguf::kGridIQ3_XXS);
            default:
                return sign * d * four(gguf::kGridIQ3_S);
        }
    }
    static float half(const uint8_t *at) {
        return gguf::f16_to_f32(static_cast<uint16_t>(at[0] | at[1] << 8));
    }
    uint16_t plain_half(const Place &p) const {
        const int a = p.r + 2 * (p.k % 4 / 2), t = p.k % 16 / 4;
        const uint8_t *at = p.main + p.k / 16 * 512 + (4 * p.g + t) * 16 + a * 4 + p.k % 2 * 2;
        return static_cast<uint16_t>(at[0] | at[1] << 8);
    }

    kernels::cuda::TileFormat format_;
    const uint8_t *bytes_;
    int64_t cols_;
};

}  // namespace runnel::tests
