#include "gguf/standard_encode.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "gguf/group_search.h"
#include "gguf/half.h"
#include "gguf/pack_levels.h"
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

float inverse_or_zero(float x) {
    return x != 0 ? 1 / x : 0;
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
    void round_scales(std::span<const ScaleAndMinimum, kGroups> lines) {
        float most_scale = 0, most_minimum = 0;
        for (const ScaleAndMinimum &line : lines) {
            most_scale = std::max(most_scale, line.scale);
            most_minimum = std::max(most_minimum, line.minimum);
        }
        const float inverse_scale = most_scale > 0 ? kLimit / most_scale : 0;
        const float inverse_minimum = most_minimum > 0 ? kLimit / most_minimum : 0;
        for (size_t g = 0; g < kGroups; ++g) {
            scales[g] =
                static_cast<uint8_t>(std::clamp(nearest_int(inverse_scale * lines[g].scale), 0, kLimit));
            minimums[g] =
                static_cast<uint8_t>(std::clamp(nearest_int(inverse_minimum * lines[g].minimum), 0, kLimit));
        }
        d = f32_to_f16(most_scale > 0 ? most_scale / kLimit : 0);
        dmin = f32_to_f16(most_minimum > 0 ? most_minimum / kLimit : 0);
    }

    // The levels for the rounded scales; groups whose scale is zero keep the levels of the search.
    void find_levels(Values x) {
        for (int g = 0; g < kGroups; ++g) {
            const float scale = f16_to_f32(d) * static_cast<float>(scales[g]);
            if (scale == 0) continue;
            const float minimum = f16_to_f32(dmin) * static_cast<float>(minimums[g]);
            group_search().round(&x[static_cast<size_t>(g * kGroup)], kGroup, {scale, minimum}, 0, kTop,
                                 &levels[static_cast<size_t>(g * kGroup)]);
        }
    }
};

// How a format searches without importance.
struct Plain {
    Weighting weighting;
    AffineCandidates candidates;
};

// The weights of all values of some super-blocks, and their sums over groups of `size`.
struct BlockWeights {
    std::array<float, kEncodeBatch * kSuperBlock> values;
    std::array<float, kEncodeBatch * 16> sums;

    // variance_factor: 2 or 1 times the mean square of a block is the variance.
    BlockWeights(Values x, Values importance, float variance_factor, size_t size) {
        for (size_t at = 0; at < x.size(); at += kSuperBlock)
            group_search().weigh(&x[at], &importance[at],
                                 variance_factor * sum_of_squares(x.subspan(at, kSuperBlock)) / kSuperBlock,
                                 kSuperBlock, &values[at]);
        for (size_t g = 0; g < x.size() / size; ++g) sums[g] = sum_of(Values(values).subspan(g * size, size));
    }
};

// The groups of up to kEncodeBatch super-blocks; with importance, the scales of groups are searched as well,
// weighted by the groups' weights.
template <int kGroups, int kTop, int kLimit>
std::array<AffineSuperBlock<kGroups, kTop, kLimit>, kEncodeBatch> search_super_blocks(Values x,
                                                                                      Values importance,
                                                                                      float variance_factor,
                                                                                      Plain plain) {
    constexpr size_t kGroup = kSuperBlock / kGroups;
    std::array<AffineSuperBlock<kGroups, kTop, kLimit>, kEncodeBatch> supers;
    std::array<ScaleAndMinimum, kEncodeBatch * kGroups> lines;
    std::array<uint8_t, kEncodeBatch * kSuperBlock> levels;
    const size_t blocks = x.size() / kSuperBlock, groups = blocks * kGroups;
    const GroupSearch &search = group_search();
    if (importance.empty()) {
        search.affine({x.data(), nullptr, plain.weighting, groups, kGroup}, kTop, plain.candidates,
                      levels.data(), lines.data());
        for (size_t b = 0; b < blocks; ++b)
            supers[b].round_scales(std::span(lines).subspan(b * kGroups).template first<kGroups>());
    } else {
        const BlockWeights weights(x, importance, variance_factor, kGroup);
        search.affine({x.data(), weights.values.data(), Weighting::Given, groups, kGroup}, kTop,
                      kWithImportance, levels.data(), lines.data());
        std::array<float, kEncodeBatch * kGroups> values;
        std::array<uint8_t, kEncodeBatch * kGroups> small;
        std::array<float, kEncodeBatch> factors;
        const Groups of_scales{values.data(), weights.sums.data(), Weighting::Given, blocks, kGroups};
        for (size_t g = 0; g < groups; ++g) values[g] = lines[g].scale;
        search.positive(of_scales, kLimit, small.data(), factors.data());
        for (size_t b = 0; b < blocks; ++b) {
            supers[b].d = f32_to_f16(factors[b]);
            std::copy_n(&small[b * kGroups], kGroups, supers[b].scales.begin());
        }
        for (size_t g = 0; g < groups; ++g) values[g] = lines[g].minimum;
        search.positive(of_scales, kLimit, small.data(), factors.data());
        for (size_t b = 0; b < blocks; ++b) {
            supers[b].dmin = f32_to_f16(factors[b]);
            std::copy_n(&small[b * kGroups], kGroups, supers[b].minimums.begin());
        }
    }
    for (size_t b = 0; b < blocks; ++b) {
        std::copy_n(&levels[b * kSuperBlock], kSuperBlock, supers[b].levels.begin());
        supers[b].find_levels(x.subspan(b * kSuperBlock, kSuperBlock));
    }
    return supers;
}

// Writes the block's scales and minimums, and zeros for its levels.
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

void standard_encode(Values x, Values importance, std::span<BlockQ2_K> blocks) {
    const auto supers =
        search_super_blocks<16, 3, 15>(x, importance, 1, {Weighting::Magnitude, {-0.5f, 0.1f, 15, true}});
    for (size_t b = 0; b < blocks.size(); ++b) {
        const auto &super = supers[b];
        BlockQ2_K &block = blocks[b];
        block.d = super.d;
        block.dmin = super.dmin;
        for (size_t g = 0; g < 16; ++g)
            block.scales[g] = static_cast<uint8_t>(super.scales[g] | super.minimums[g] << 4);
        pack_pairs_of_bits(super.levels.data(), block.qs);
    }
}

void standard_encode(Values x, Values importance, std::span<BlockQ4_K> blocks) {
    const auto supers =
        search_super_blocks<8, 15, 63>(x, importance, 2, {Weighting::RmsPlusMagnitude, {-1.0f, 0.1f, 20}});
    for (size_t b = 0; b < blocks.size(); ++b) {
        write_head(supers[b], blocks[b]);
        pack_64_nibbles(supers[b].levels.data(), blocks[b].qs);
    }
}

void standard_encode(Values x, Values importance, std::span<BlockQ5_K> blocks) {
    const auto supers =
        search_super_blocks<8, 31, 63>(x, importance, 2, {Weighting::RmsPlusMagnitude, {-0.5f, 0.1f, 15}});
    for (size_t b = 0; b < blocks.size(); ++b) {
        const uint8_t *const levels = supers[b].levels.data();
        write_head(supers[b], blocks[b]);
        pack_64_nibbles(levels, blocks[b].qs);
        pack_upper_bits(levels, 4, blocks[b].qh);
    }
}

void standard_encode(Values x, Values importance, std::span<BlockQ3_K> blocks) {
    std::array<int8_t, kEncodeBatch * kSuperBlock> searched;
    std::array<float, kEncodeBatch * 16> scales;
    std::array<int8_t, kEncodeBatch * 16> small;  // scales, 0..63
    std::array<float, kEncodeBatch> factors;
    const GroupSearch &search = group_search();
    const size_t groups = 16 * blocks.size();
    if (importance.empty()) {
        search.descend({x.data(), nullptr, Weighting::Square, groups, 16}, 4, searched.data(), scales.data());
        for (size_t b = 0; b < blocks.size(); ++b) {
            float largest = 0;
            for (size_t g = 16 * b; g < 16 * (b + 1); ++g)
                if (std::fabs(scales[g]) > std::fabs(largest)) largest = scales[g];
            const float inverse = largest != 0 ? -32.0f / largest : 0;
            for (size_t g = 16 * b; g < 16 * (b + 1); ++g)
                small[g] = static_cast<int8_t>(
                    largest != 0 ? std::clamp(nearest_int(inverse * scales[g]), -32, 31) + 32 : 0);
            factors[b] = inverse_or_zero(inverse);
        }
    } else {
        const BlockWeights weights(x, importance, 2, 16);
        search.symmetric({x.data(), weights.values.data(), Weighting::Given, groups, 16}, 4, searched.data(),
                         scales.data());
        search.symmetric({scales.data(), weights.sums.data(), Weighting::Given, blocks.size(), 16}, 32,
                         small.data(), factors.data());
    }
    for (size_t b = 0; b < blocks.size(); ++b) {
        BlockQ3_K &block = blocks[b];
        block = {};
        block.d = f32_to_f16(factors[b]);
        std::array<uint8_t, kSuperBlock> levels;
        std::copy_n(&searched[b * kSuperBlock], kSuperBlock, levels.begin());
        uint8_t unsigned_scales[16];
        std::copy_n(&small[16 * b], 16, unsigned_scales);
        pack_q3_scales(unsigned_scales, block.scales);
        for (size_t g = 0; g < 16; ++g) {
            const float scale = f16_to_f32(block.d) * static_cast<float>(unsigned_scales[g] - 32);
            if (scale != 0)
                search.round(&x[b * kSuperBlock + 16 * g], 16, {scale, 0}, -4, 3, &levels[16 * g]);
        }
        pack_upper_bits(levels.data(), 2, block.hmask);
        for (uint8_t &level : levels) level &= 3;
        pack_pairs_of_bits(levels.data(), block.qs);
    }
}

void standard_encode(Values x, Values importance, std::span<BlockQ6_K> blocks) {
    std::array<int8_t, kEncodeBatch * kSuperBlock> searched;
    std::array<float, kEncodeBatch * 16> scales;
    const GroupSearch &search = group_search();
    search.symmetric({x.data(), importance.empty() ? nullptr : importance.data(),
                      importance.empty() ? Weighting::Square : Weighting::Given, 16 * blocks.size(), 16},
                     32, searched.data(), scales.data());
    for (size_t b = 0; b < blocks.size(); ++b) {
        BlockQ6_K &block = blocks[b];
        block = {};
        float largest = 0, magnitude = 0;
        for (size_t g = 16 * b; g < 16 * (b + 1); ++g)
            if (std::fabs(scales[g]) > magnitude) magnitude = std::fabs(scales[g]), largest = scales[g];
        if (!(magnitude >= 1e-15f)) continue;
        const float inverse = -128.0f / largest;
        block.d = f32_to_f16(1 / inverse);
        std::array<uint8_t, kSuperBlock> levels;
        std::copy_n(&searched[b * kSuperBlock], kSuperBlock, levels.begin());
        for (size_t g = 0; g < 16; ++g) {
            block.scales[g] =
                static_cast<int8_t>(std::clamp(nearest_int(inverse * scales[16 * b + g]), -128, 127));
            const float scale = f16_to_f32(block.d) * static_cast<float>(block.scales[g]);
            if (scale != 0)
                search.round(&x[b * kSuperBlock + 16 * g], 16, {scale, 0}, -32, 31, &levels[16 * g]);
        }
        pack_levels(levels.data(), block);
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
