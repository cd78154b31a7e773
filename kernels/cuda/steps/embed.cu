// Rows of a matrix in tiles as float32. A thread computes one value at a time, from bytes that its warp
// shares. Only one row of the matrix is read per token, 0.5-4 bytes per value plus its scales, so this
// kernel is not worth tuning.
#include "kernels/cuda/steps/embed.h"

#include "kernels/cuda/linear/codebooks.h"
#include "kernels/cuda/linear/halves.h"
#include "kernels/cuda/runtime/device.h"

namespace runnel::kernels::cuda {

namespace {

// The location of a weight; see tiles.h. k: column in the block; row in the tile = g + 8 r.
struct Place {
    const uint8_t *block, *main, *high, *scales2;
    int k, row, g, r;
};

DEVICE Place place_of(const EmbedParams &p, int32_t row, int32_t col) {
    const TileLayout layout = tile_layout(p.format);
    const auto *block = reinterpret_cast<const uint8_t *>(p.tiles) +
                        row / kTileRows * row_tile_bytes(p.format, p.cols) +
                        col / kTileCols * block_bytes(p.format);
    const int in = row % kTileRows;
    return {
        block, block + layout.side, block + layout.high, block + layout.scales2, col % kTileCols, in, in % 8,
        in / 8};
}

DEVICE float half_at(const uint8_t *at) {
    return f16_to_f32(static_cast<uint16_t>(at[0] | at[1] << 8));
}

// Byte offset of weight k of a group of 32, in a plane of [..][lane][a] words.
DEVICE int fragment_byte(const Place &p) {
    const int lane = 4 * p.g + p.k % 16 / 4, a = p.r + 2 * (p.k % 32 / 16);
    return lane * 16 + a * 4 + p.k % 4;
}

DEVICE int nibble_of(const Place &p) {
    return p.main[p.k / 64 * 512 + fragment_byte(p)] >> p.k / 32 % 2 * 4 & 15;
}

DEVICE int bit4_of(const Place &p) {
    const int lane = 4 * p.g + p.k % 16 / 4, a = p.r + 2 * (p.k % 32 / 16);
    return (p.high[lane * 16 + p.k / 64 * 4 + p.k % 4] >> (p.k / 32 % 2 * 4 + a) & 1) << 4;
}

DEVICE int pair_of(const Place &p) {
    const int lane = 4 * p.g + p.k % 16 / 4;
    return p.main[p.k / 128 * 512 + lane * 16 + (p.k / 64 % 2 * 2 + p.r) * 4 + p.k % 4] >> p.k / 16 % 4 * 2 &
           3;
}

DEVICE float iq4_value(int code) {
    constexpr uint32_t kValues[4] = {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u};  // gguf::kIQ4Values
    const uint32_t word = code < 4 ? kValues[0] : code < 8 ? kValues[1] : code < 12 ? kValues[2] : kValues[3];
    return static_cast<float>(static_cast<int8_t>(word >> code % 4 * 8 & 255u));
}

// gguf::kMXFP4Values
DEVICE float e2m1_value(int code) {
    const int index = code & 7, magnitude = index < 5 ? index : index == 5 ? 6 : index == 6 ? 8 : 12;
    return static_cast<float>(code & 8 ? -magnitude : magnitude);
}

DEVICE float mxfp4_value(const Place &p) {
    const uint32_t e = p.block[8 * p.row + p.k / 32];
    return bits_float(e >= 2 ? (e - 1) << 23 : 0x00200000u << e) * e2m1_value(nibble_of(p));
}

DEVICE float nvfp4_value(const Place &p) {
    const uint32_t scale = p.block[16 * p.row + p.k / 16];
    return bits_float(scale << 20) * 0x1p119f * e2m1_value(nibble_of(p));
}

// A weight of a codebook format (tiles.h), with ggml's float operations.
DEVICE float codebook_value(const Place &p, TileFormat format) {
    const TileLayout layout = tile_layout(format);
    const int lane = 4 * p.g + p.k % 16 / 4, chunk = p.k / 64, s = p.k / 32 % 2,
              a = p.r + 2 * (p.k % 32 / 16);
    const int j = 4 * s + a, i = p.k % 4, owner = has_quads(format) ? lane : lane / 2;
    const auto word_at = [](const uint8_t *at) { return *reinterpret_cast<const uint32_t *>(at); };
    const auto upper = [&](int words, int word, int bit) {
        return word_at(p.high + 4 * (words * owner + word)) >> bit;
    };
    uint32_t index = p.main[chunk * layout.chunk + 8 * owner + 4 * s + a];
    if (format == TileFormat::IQ1) index |= (upper(4, chunk, 4 * j) & 7u) << 8;
    if (format == TileFormat::IQ2_S) index |= (upper(2, chunk / 2, 2 * (8 * (chunk % 2) + j)) & 3u) << 8;
    if (format == TileFormat::IQ2_XS || format == TileFormat::IQ3_S)
        index |= (upper(1, 0, 8 * chunk + j) & 1u) << 8;
    const uint32_t word = book_word(format, book_code(format, static_cast<int>(index)));
    const int row = 2 * p.g + p.r, groups = has_groups_of_16(format) ? 16 : 8, group = p.k * groups / 256;
    const int nibble = p.block[(row * groups + group) / 2] >> 4 * (group % 2) & 15;
    const float scale = static_cast<float>(2 * nibble + 1), d = half_at(p.scales2 + 2 * row);
    if (format == TileFormat::IQ1) {
        const int level = static_cast<int>(word >> 4 * (p.k % 8) & 15u) - 1;
        const float shift = upper(4, chunk, 4 * j + 3) & 1u ? -0.125f : 0.125f;
        return d * scale * (static_cast<float>(level) + shift);
    }
    const uint32_t signs = word_at(p.block + layout.signs + 16 * lane + 4 * chunk);
    const bool negative = signs >> (has_quads(format) ? 8 * i + j : 16 * s + 4 * i + a) & 1u;
    const int level = static_cast<int>(word >> 4 * (p.k % 8) & 15u);
    const int size = has_quads(format) ? static_cast<int>(word >> 8 * i & 255u)
                     : level == 0      ? 8
                     : level == 1      ? 25
                                       : 43;
    const float unit = format == TileFormat::IQ3_S ? 1.0f : format == TileFormat::IQ3_XXS ? 0.25f : 0.125f;
    return d * scale * unit * static_cast<float>(negative ? -size : size);
}

DEVICE float q2_value(const Place &p) {
    const int scale = p.block[16 * p.row + p.k / 16];
    const uint8_t *d = p.scales2 + 4 * (2 * p.g + p.r);
    return half_at(d) * static_cast<float>(scale & 15) * static_cast<float>(pair_of(p)) -
           half_at(d + 2) * static_cast<float>(scale >> 4);
}

DEVICE float q3_value(const Place &p) {
    const int pair = 2 * p.g + p.r, i = p.k / 16, lane = 4 * p.g + p.k % 16 / 4;
    const uint8_t *s = p.block + 12 * pair;
    const int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4, scale = low | (s[8 + i % 4] >> i / 4 * 2 & 3) << 4;
    const int bit = p.high[lane * 16 + (i / 8 * 2 + p.r) * 4 + p.k % 4] >> i % 8 & 1;
    return half_at(p.scales2 + 2 * pair) * static_cast<float>(scale - 32) *
           static_cast<float>((pair_of(p) | bit << 2) - 4);
}

DEVICE float q45_value(const Place &p, int code) {
    const uint8_t *header = p.block + 16 * p.row, *s = header + 4;
    const int group = p.k / 32, j = group % 4;
    const int scale = group < 4 ? s[j] & 63 : (s[8 + j] & 15) | s[j] >> 6 << 4;
    const int minimum = group < 4 ? s[4 + j] & 63 : s[8 + j] >> 4 | s[4 + j] >> 6 << 4;
    return half_at(header) * static_cast<float>(scale) * static_cast<float>(code) -
           half_at(header + 2) * static_cast<float>(minimum);
}

DEVICE float q6_value(const Place &p) {
    const int lane = 4 * p.g + p.k % 16 / 4, a = p.r + 2 * (p.k % 32 / 16);
    const int bits = p.high[p.k / 128 * 512 + lane * 16 + p.k / 32 % 4 * 4 + p.k % 4] >> 2 * a & 3;
    const auto scale = static_cast<int8_t>(p.block[16 * p.row + p.k / 16]);
    return half_at(p.scales2 + 2 * (2 * p.g + p.r)) * static_cast<float>(scale) *
           static_cast<float>((nibble_of(p) | bits << 4) - 32);
}

DEVICE float iq4_xs_value(const Place &p) {
    const uint8_t *header = p.block + 16 * p.g;
    const int group = p.k / 32, low = header[4 * p.r + group / 2] >> group % 2 * 4 & 15;
    const int high = (header[8 + 2 * p.r] | header[9 + 2 * p.r] << 8) >> 2 * group & 3;
    return half_at(header + 12 + 2 * p.r) * static_cast<float>((low | high << 4) - 32) *
           iq4_value(nibble_of(p));
}

DEVICE float plain_value(const Place &p, TileFormat format) {
    if (format == TileFormat::F32)
        return *reinterpret_cast<const float *>(p.main + p.k / 16 * 1024 + p.r * 512 +
                                                (4 * p.g + p.k % 16 / 4) * 16 + p.k % 4 * 4);
    const int a = p.r + 2 * (p.k % 4 / 2);
    const auto bits = *reinterpret_cast<const uint16_t *>(
        p.main + p.k / 16 * 512 + (4 * p.g + p.k % 16 / 4) * 16 + a * 4 + p.k % 2 * 2);
    const float value = f16_to_f32(bits);
    return format == TileFormat::F16 ? value : value * row_factor(p.block[4 * p.g + p.r]);
}

DEVICE float value_of(const EmbedParams &params, int32_t row, int32_t col) {
    const Place p = place_of(params, row, col);
    const auto d = [&] { return half_at(p.block + 2 * (8 * p.row + p.k / 32)); };
    const auto m = [&] { return half_at(p.scales2 + 2 * (8 * p.row + p.k / 32)); };
    switch (params.format) {
        case TileFormat::Q4_0:
            return static_cast<float>(nibble_of(p) - 8) * d();
        case TileFormat::Q4_1:
            return static_cast<float>(nibble_of(p)) * d() + m();
        case TileFormat::Q5_0:
            return static_cast<float>((nibble_of(p) | bit4_of(p)) - 16) * d();
        case TileFormat::Q5_1:
            return static_cast<float>(nibble_of(p) | bit4_of(p)) * d() + m();
        case TileFormat::Q8_0:
            return static_cast<float>(static_cast<int8_t>(p.main[p.k / 32 * 512 + fragment_byte(p)])) * d();
        case TileFormat::IQ4_NL:
            return d() * iq4_value(nibble_of(p));
        case TileFormat::MXFP4:
            return mxfp4_value(p);
        case TileFormat::NVFP4:
            return nvfp4_value(p);
        case TileFormat::IQ1:
        case TileFormat::IQ2_XXS:
        case TileFormat::IQ2_XS:
        case TileFormat::IQ2_S:
        case TileFormat::IQ3_XXS:
        case TileFormat::IQ3_S:
            return codebook_value(p, params.format);
        case TileFormat::Q2_K:
            return q2_value(p);
        case TileFormat::Q3_K:
            return q3_value(p);
        case TileFormat::Q4_K:
            return q45_value(p, nibble_of(p));
        case TileFormat::Q5_K:
            return q45_value(p, nibble_of(p) | bit4_of(p));
        case TileFormat::Q6_K:
            return q6_value(p);
        case TileFormat::IQ4_XS:
            return iq4_xs_value(p);
        default:
            return plain_value(p, params.format);
    }
}

struct Embed {
    using Params = EmbedParams;
    static constexpr const char *kName = "embed";
    static constexpr int kThreads = 256, kBlocks = 4;

    static DEVICE void run(const Params &p) {
        grid_dep_wait();
        grid_dep_trigger();
        const int32_t asked = p.rows[block_index()], row = asked < p.last_row ? asked : p.last_row;
        float *out = p.out + block_index() * p.out_stride;
        for (int32_t col = thread_index(); col < p.cols; col += block_threads())
            out[col] = p.scale * value_of(p, row, col) + (p.add ? out[col] : 0.0f);
    }
};

struct Gather {
    using Params = GatherParams;
    static constexpr const char *kName = "gather";
    static constexpr int kThreads = 256, kBlocks = 4;

    static DEVICE void run(const Params &p) {
        grid_dep_wait();
        grid_dep_trigger();
        const float *in = p.in + p.rows[block_index()] * p.in_stride;
        float *out = p.out + block_index() * p.out_stride;
        for (int32_t col = thread_index(); col < p.width; col += block_threads()) out[col] = in[col];
    }
};

}  // namespace

Kernel<EmbedParams> embed_kernel() {
    return kernel_of<Embed>();
}

Kernel<GatherParams> gather_kernel() {
    return kernel_of<Gather>();
}

}  // namespace runnel::kernels::cuda
