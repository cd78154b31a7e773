#include "gguf/standard_encode.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "gguf/half.h"
#include "gguf/scale_search.h"
#include "gguf/scales.h"

namespace runnel::gguf {
namespace {

using Values = std::span<const float>;

float sum_of_squares(Values x) {
    float sum = 0;
    for (const float value : x) sum += value * value;
    return sum;
}

// importance * sqrt(variance + x^2).
void weigh(Values x, Values importance, float variance, std::span<float> weights) {
    for (size_t i = 0; i < x.size(); ++i) weights[i] = importance[i] * std::sqrt(variance + x[i] * x[i]);
}

float sum_of(Values x) {
    float sum = 0;
    for (const float value : x) sum += value;
    return sum;
}

// qs[i] = level of weight i | level of weight i + 16 << 4.
template <class Level>
void pack_nibbles(uint8_t *qs, const Level *levels) {
    for (int i = 0; i < 16; ++i) qs[i] = static_cast<uint8_t>((levels[i] & 15) | (levels[i + 16] & 15) << 4);
}

template <class Level>
void pack_fifth_bits(uint8_t *qh, const Level *levels) {
    std::fill_n(qh, 4, uint8_t{0});
    for (int i = 0; i < 32; ++i)
        qh[i / 8] = static_cast<uint8_t>(qh[i / 8] | (levels[i] >> 4 & 1) << (i % 8));
}

constexpr AffineCandidates kWithImportance{-0.9f, 0.05f, 36};

// The scale and levels of a block of 32; affine_block() adds a minimum.
float symmetric_block(Values x, Values importance, float mean_square, int top, int8_t *levels) {
    float weights[32];
    weigh(x, importance, mean_square, weights);
    return search_symmetric(x, top, weights, levels);
}
ScaleAndMinimum affine_block(Values x, Values importance, float mean_square, int top, uint8_t *levels) {
    float weights[32];
    weigh(x, importance, mean_square, weights);
    return search_affine(x, top, weights, kWithImportance, levels);
}

// The scales and minimums of a super-block's groups, as small integers with two float16 factors.
template <int kGroups, int kTop, int kLimit>
struct AffineSuperBlock {
    static constexpr int kGroup = kSuperBlock / kGroups;
    std::array<uint8_t, kGroups> scales{}, minimums{};
    f16_bits d{}, dmin{};
    std::array<uint8_t, kSuperBlock> levels{};

    // Without importance: scales are rounded to the largest one over kLimit.
    void round_scales(const std::array<ScaleAndMinimum, kGroups> &lines) {
        float most_scale = 0, most_minimum = 0;
        for (const ScaleAndMinimum &line : lines) {
            most_scale = std::max(most_scale, line.scale);
            most_minimum = std::max(most_minimum, line.minimum);
        }
        const float inverse_scale = most_scale > 0 ? kLimit / most_scale : 0;
        const float inverse_minimum = most_minimum > 0 ? kLimit / most_minimum : 0;
        for (int g = 0; g < kGroups; ++g) {
            scales[g] =
                static_cast<uint8_t>(std::clamp(nearest_int(inverse_scale * lines[g].scale), 0, kLimit));
            minimums[g] =
                static_cast<uint8_t>(std::clamp(nearest_int(inverse_minimum * lines[g].minimum), 0, kLimit));
        }
        d = f32_to_f16(most_scale > 0 ? most_scale / kLimit : 0);
        dmin = f32_to_f16(most_minimum > 0 ? most_minimum / kLimit : 0);
    }

    // With importance: scales are searched, weighted by the groups' weights.
    void search_scales(const std::array<ScaleAndMinimum, kGroups> &lines, Values group_weights) {
        std::array<float, kGroups> s, m;
        for (int g = 0; g < kGroups; ++g) s[g] = lines[g].scale, m[g] = lines[g].minimum;
        d = f32_to_f16(search_positive(s, kLimit, group_weights, scales.data()));
        dmin = f32_to_f16(search_positive(m, kLimit, group_weights, minimums.data()));
    }

    // The levels for the rounded scales; groups whose scale is zero keep the levels of the search.
    void find_levels(Values x) {
        for (int g = 0; g < kGroups; ++g) {
            const float scale = f16_to_f32(d) * static_cast<float>(scales[g]);
            if (scale == 0) continue;
            const float minimum = f16_to_f32(dmin) * static_cast<float>(minimums[g]);
            for (int i = g * kGroup; i < (g + 1) * kGroup; ++i)
                levels[i] = static_cast<uint8_t>(std::clamp(nearest_int((x[i] + minimum) / scale), 0, kTop));
        }
    }
};

// The groups of Q4_K (kTop 15) and Q5_K (31).
template <int kTop>
AffineSuperBlock<8, kTop, 63> eight_groups(Values x, Values importance, AffineCandidates plain) {
    AffineSuperBlock<8, kTop, 63> block;
    std::array<ScaleAndMinimum, 8> lines;
    std::array<float, 8> group_weights{};
    const float variance = 2 * sum_of_squares(x) / kSuperBlock;
    for (int g = 0; g < 8; ++g) {
        const Values group = x.subspan(static_cast<size_t>(32 * g), 32);
        float weights[32];
        if (importance.empty()) {
            const float rms = std::sqrt(sum_of_squares(group) / 32);
            for (size_t i = 0; i < 32; ++i) weights[i] = rms + std::fabs(group[i]);
        } else {
            weigh(group, importance.subspan(static_cast<size_t>(32 * g), 32), variance, weights);
            group_weights[g] = sum_of(weights);
        }
        lines[g] = search_affine(group, kTop, weights, importance.empty() ? plain : kWithImportance,
                                 &block.levels[32 * g]);
    }
    if (importance.empty()) {
        block.round_scales(lines);
    } else {
        block.search_scales(lines, group_weights);
    }
    block.find_levels(x);
    return block;
}

// Everything but the levels, which are 0 then.
template <class Super, class Block>
void write_head(const Super &super, Block &block) {
    block = {};
    block.d = super.d;
    block.dmin = super.dmin;
    ScalesAndMins both{};
    std::copy_n(super.scales.begin(), 8, both.scales);
    std::copy_n(super.minimums.begin(), 8, both.mins);
    pack_scales_mins(both, block.scales);
}

// Index of the IQ4 table's value nearest to x; the larger of two equally near ones.
int nearest_iq4(float x) {
    const int8_t *const above = std::upper_bound(kIQ4Values, kIQ4Values + 16, x,
                                                 [](float a, int8_t b) { return a < static_cast<float>(b); });
    const auto index = static_cast<int>(above - kIQ4Values);
    if (index == 0 || index == 16) return std::min(index, 15);
    const float below = kIQ4Values[index - 1];
    return x - below < static_cast<float>(*above) - x ? index - 1 : index;
}

// The scale of a group on the IQ4 table: the best of 15 steps around the scale that maps the extreme
// value to the table's first.
float search_iq4(Values x, Values weights) {
    constexpr int kSteps = 7;
    float largest = 0, magnitude = 0;
    for (const float value : x)
        if (const float a = std::fabs(value); a > magnitude) magnitude = a, largest = value;
    if (!(magnitude >= 1e-15f)) return 0;
    struct Sums {
        float xq = 0, qq = 0;
    };
    const auto products = [&](float inverse) {
        Sums sums;
        for (size_t i = 0; i < x.size(); ++i) {
            const float q = kIQ4Values[nearest_iq4(inverse * x[i])];
            sums.xq += weights[i] * q * x[i];
            sums.qq += weights[i] * q * q;
        }
        return sums;
    };
    const float first = kIQ4Values[0];
    const Sums plain = products(1 / (-largest / first));
    float scale = plain.xq / plain.qq, best = scale * plain.xq;
    for (int k = -kSteps; k <= kSteps; ++k) {
        const Sums sums = products((static_cast<float>(k) + first) / largest);
        if (sums.qq > 0 && sums.xq * sums.xq > best * sums.qq) {
            scale = sums.xq / sums.qq;
            best = scale * sums.xq;
        }
    }
    return scale;
}

void weigh_iq4(Values x, Values importance, float variance, std::span<float> weights) {
    if (!importance.empty()) return weigh(x, importance, variance, weights);
    for (size_t i = 0; i < x.size(); ++i) weights[i] = x[i] * x[i];
}

float inverse_or_zero(float x) {
    return x != 0 ? 1 / x : 0;
}

}  // namespace

void standard_encode(Values x, Values importance, float row_mean_square, BlockQ4_0 &block) {
    int8_t levels[32];
    block.d = f32_to_f16(symmetric_block(x, importance, row_mean_square, 8, levels));
    pack_nibbles(block.qs, levels);
}

void standard_encode(Values x, Values importance, float row_mean_square, BlockQ5_0 &block) {
    int8_t levels[32];
    block.d = f32_to_f16(symmetric_block(x, importance, row_mean_square, 16, levels));
    pack_nibbles(block.qs, levels);
    pack_fifth_bits(block.qh, levels);
}

void standard_encode(Values x, Values importance, float row_mean_square, BlockQ4_1 &block) {
    uint8_t levels[32];
    const ScaleAndMinimum line = affine_block(x, importance, row_mean_square, 15, levels);
    block.d = f32_to_f16(line.scale);
    block.m = f32_to_f16(-line.minimum);
    pack_nibbles(block.qs, levels);
}

void standard_encode(Values x, Values importance, float row_mean_square, BlockQ5_1 &block) {
    uint8_t levels[32];
    const ScaleAndMinimum line = affine_block(x, importance, row_mean_square, 31, levels);
    block.d = f32_to_f16(line.scale);
    block.m = f32_to_f16(-line.minimum);
    pack_nibbles(block.qs, levels);
    pack_fifth_bits(block.qh, levels);
}

void standard_encode(Values x, Values importance, BlockQ2_K &block) {
    AffineSuperBlock<16, 3, 15> super;
    std::array<ScaleAndMinimum, 16> lines;
    std::array<float, 16> group_weights{};
    const float variance = sum_of_squares(x) / kSuperBlock;
    for (int g = 0; g < 16; ++g) {
        const Values group = x.subspan(static_cast<size_t>(16 * g), 16);
        float weights[16];
        if (importance.empty()) {
            for (size_t i = 0; i < 16; ++i) weights[i] = std::fabs(group[i]);
        } else {
            weigh(group, importance.subspan(static_cast<size_t>(16 * g), 16), variance, weights);
            group_weights[g] = sum_of(weights);
        }
        constexpr AffineCandidates kPlain{-0.5f, 0.1f, 15, true};
        lines[g] = search_affine(group, 3, weights, importance.empty() ? kPlain : kWithImportance,
                                 &super.levels[16 * g]);
    }
    if (importance.empty()) {
        super.round_scales(lines);
    } else {
        super.search_scales(lines, group_weights);
    }
    super.find_levels(x);
    block = {};
    block.d = super.d;
    block.dmin = super.dmin;
    for (int g = 0; g < 16; ++g)
        block.scales[g] = static_cast<uint8_t>(super.scales[g] | super.minimums[g] << 4);
    for (int i = 0; i < kSuperBlock; ++i) {
        uint8_t &byte = block.qs[i / 128 * 32 + i % 32];
        byte = static_cast<uint8_t>(byte | super.levels[i] << (i / 32 % 4 * 2));
    }
}

void standard_encode(Values x, Values importance, BlockQ4_K &block) {
    const auto super = eight_groups<15>(x, importance, {-1.0f, 0.1f, 20});
    write_head(super, block);
    for (int i = 0; i < kSuperBlock; ++i) {
        uint8_t &byte = block.qs[i / 64 * 32 + i % 32];
        byte = static_cast<uint8_t>(byte | super.levels[i] << (i / 32 % 2 * 4));
    }
}

void standard_encode(Values x, Values importance, BlockQ5_K &block) {
    const auto super = eight_groups<31>(x, importance, {-0.5f, 0.1f, 15});
    write_head(super, block);
    for (int i = 0; i < kSuperBlock; ++i) {
        const int q = super.levels[i];
        uint8_t &low = block.qs[i / 64 * 32 + i % 32], &high = block.qh[i % 32];
        low = static_cast<uint8_t>(low | (q & 15) << (i / 32 % 2 * 4));
        high = static_cast<uint8_t>(high | (q >> 4) << (i / 32));
    }
}

void standard_encode(Values x, Values importance, BlockQ3_K &block) {
    std::array<int8_t, kSuperBlock> levels;
    std::array<float, 16> scales, group_weights{};
    const float variance = 2 * sum_of_squares(x) / kSuperBlock;
    for (int g = 0; g < 16; ++g) {
        const Values group = x.subspan(static_cast<size_t>(16 * g), 16);
        if (importance.empty()) {
            scales[g] = descend_symmetric(group, 4, &levels[16 * g]);
            continue;
        }
        float weights[16];
        weigh(group, importance.subspan(static_cast<size_t>(16 * g), 16), variance, weights);
        group_weights[g] = sum_of(weights);
        scales[g] = search_symmetric(group, 4, weights, &levels[16 * g]);
    }
    block = {};
    std::array<int8_t, 16> small;  // scales, 0..63
    if (importance.empty()) {
        float largest = 0;
        for (const float scale : scales)
            if (std::fabs(scale) > std::fabs(largest)) largest = scale;
        const float inverse = largest != 0 ? -32.0f / largest : 0;
        for (int g = 0; g < 16; ++g)
            small[g] = static_cast<int8_t>(
                largest != 0 ? std::clamp(nearest_int(inverse * scales[g]), -32, 31) + 32 : 0);
        block.d = f32_to_f16(inverse_or_zero(inverse));
    } else {
        block.d = f32_to_f16(search_symmetric(scales, 32, group_weights, small.data()));
    }
    uint8_t unsigned_scales[16];
    std::copy(small.begin(), small.end(), unsigned_scales);
    pack_q3_scales(unsigned_scales, block.scales);
    for (int g = 0; g < 16; ++g) {
        const float scale = f16_to_f32(block.d) * static_cast<float>(small[g] - 32);
        if (scale == 0) continue;
        for (int i = 16 * g; i < 16 * (g + 1); ++i)
            levels[i] = static_cast<int8_t>(std::clamp(nearest_int(x[i] / scale), -4, 3) + 4);
    }
    for (int i = 0; i < kSuperBlock; ++i) {
        const int low = levels[i] & 3, high = levels[i] >> 2;
        uint8_t &byte = block.qs[i / 128 * 32 + i % 32], &mask = block.hmask[i % 32];
        byte = static_cast<uint8_t>(byte | low << (i / 32 % 4 * 2));
        mask = static_cast<uint8_t>(mask | high << (i / 32));
    }
}

void standard_encode(Values x, Values importance, BlockQ6_K &block) {
    std::array<int8_t, kSuperBlock> levels;
    std::array<float, 16> scales;
    float largest = 0, magnitude = 0;
    for (int g = 0; g < 16; ++g) {
        const auto at = static_cast<size_t>(16 * g);
        scales[g] = search_symmetric(
            x.subspan(at, 16), 32, importance.empty() ? importance : importance.subspan(at, 16), &levels[at]);
        if (std::fabs(scales[g]) > magnitude) magnitude = std::fabs(scales[g]), largest = scales[g];
    }
    block = {};
    if (!(magnitude >= 1e-15f)) return;
    const float inverse = -128.0f / largest;
    block.d = f32_to_f16(1 / inverse);
    for (int g = 0; g < 16; ++g) {
        block.scales[g] = static_cast<int8_t>(std::clamp(nearest_int(inverse * scales[g]), -128, 127));
        const float scale = f16_to_f32(block.d) * static_cast<float>(block.scales[g]);
        if (scale == 0) continue;
        for (int i = 16 * g; i < 16 * (g + 1); ++i)
            levels[i] = static_cast<int8_t>(std::clamp(nearest_int(x[i] / scale), -32, 31) + 32);
    }
    for (int i = 0; i < kSuperBlock; ++i) {
        uint8_t &low = block.ql[i / 128 * 64 + i % 64], &high = block.qh[i / 128 * 32 + i % 32];
        low = static_cast<uint8_t>(low | (levels[i] & 15) << (i / 64 % 2 * 4));
        high = static_cast<uint8_t>(high | (levels[i] >> 4) << (i / 32 % 4 * 2));
    }
}

void standard_encode(Values x, Values importance, BlockIQ4_NL &block) {
    float weights[32];
    weigh_iq4(x, importance, sum_of_squares(x) * (2.0f / 32), weights);
    const float scale = search_iq4(x, weights), inverse = inverse_or_zero(scale);
    block.d = f32_to_f16(scale);
    int levels[32];
    for (size_t i = 0; i < 32; ++i) levels[i] = nearest_iq4(inverse * x[i]);
    pack_nibbles(block.qs, levels);
}

void standard_encode(Values x, Values importance, BlockIQ4_XS &block) {
    const float variance = sum_of_squares(x) * (2.0f / kSuperBlock);
    std::array<float, 8> scales;
    float largest = 0, magnitude = 0;
    for (int g = 0; g < 8; ++g) {
        const auto at = static_cast<size_t>(32 * g);
        float weights[32];
        weigh_iq4(x.subspan(at, 32), importance.empty() ? importance : importance.subspan(at, 32), variance,
                  weights);
        scales[g] = search_iq4(x.subspan(at, 32), weights);
        if (std::fabs(scales[g]) > magnitude) magnitude = std::fabs(scales[g]), largest = scales[g];
    }
    block = {};
    const float d = -largest / 32, inverse = inverse_or_zero(d);
    block.d = f32_to_f16(d);
    uint16_t high = 0;
    for (int g = 0; g < 8; ++g) {
        const int small = std::clamp(nearest_int(inverse * scales[g]), -32, 31);
        const float group_inverse = inverse_or_zero(d * static_cast<float>(small));
        int levels[32];
        for (int i = 0; i < 32; ++i) levels[i] = nearest_iq4(group_inverse * x[32 * g + i]);
        pack_nibbles(block.qs + 16 * g, levels);
        const int stored = small + 32;
        block.scales_l[g / 2] = static_cast<uint8_t>(block.scales_l[g / 2] | (stored & 15) << (g % 2 * 4));
        high = static_cast<uint16_t>(high | (stored >> 4) << (2 * g));
    }
    block.scales_h = high;
}

}  // namespace runnel::gguf
