// IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S: groups of weights with a scale. The magnitudes of every eight or four weights
// are an entry of a codebook; signs are stored separately.
//
// A group's scale is searched: for each candidate, magnitudes are rounded to odd numbers (2 level + 1),
// points that are not entries move to the neighbor with the smallest weighted error, and the least-squares
// scale of the result is compared. Formats differ in a few numbers (the Format structs) and in how signs are
// stored: all eight signs, or seven of them with even parity; for odd parity the least important sign is
// flipped.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "gguf/codebook.h"
#include "gguf/codebook_search.h"
#include "gguf/scale_search.h"
#include "gguf/standard_encode.h"

namespace runnel::gguf {
namespace {

using Values = std::span<const float>;

// Which entries are rounded again with the best scale.
enum class Refit { OffEntries, AllIfAnyOff, All };

struct FormatIQ2 {
    static constexpr int kWeights = 8, kBits = 2, kTop = 2, kGroup = 16;
    static constexpr int kSteps = 9;  // candidates on each side
    static constexpr float kStep = 0.1f, kNothing = 1e-15f, kVariance = 1;
    static constexpr bool kEvenSigns = true, kSearchedStart = false;
    static constexpr Refit kRefit = Refit::OffEntries;
    static float plain_weight(float, float square) { return square; }
};
struct FormatIQ2_XXS : FormatIQ2 {
    static constexpr int kGroup = 32, kSteps = 6;
    static constexpr bool kSearchedStart = true;
    static constexpr Refit kRefit = Refit::All;
    static const CodebookSearch &search() { return search_iq2_xxs(); }
};
struct FormatIQ2_XS : FormatIQ2 {
    static const CodebookSearch &search() { return search_iq2_xs(); }
};
struct FormatIQ2_S : FormatIQ2 {
    static constexpr float kNothing = 1e-8f, kVariance = 2;
    static constexpr bool kEvenSigns = false;
    static const CodebookSearch &search() { return search_iq2_s(); }
    static float plain_weight(float variance, float square) { return 0.25f * variance + square; }
};
struct FormatIQ3_XXS : FormatIQ2 {
    static constexpr int kWeights = 4, kBits = 3, kTop = 7, kGroup = 32, kSteps = 15;
    static constexpr float kStep = 0.2f, kNothing = 1e-8f, kVariance = 2;
    static const CodebookSearch &search() { return search_iq3_xxs(); }
};
struct FormatIQ3_S : FormatIQ3_XXS {
    static constexpr int kSteps = 9;
    static constexpr float kNothing = FLT_TRUE_MIN;
    static constexpr bool kEvenSigns = false;
    static constexpr Refit kRefit = Refit::AllIfAnyOff;
    static const CodebookSearch &search() { return search_iq3_s(); }
};

template <class Format>
struct Group {
    static constexpr int kCount = Format::kGroup, kEntries = Format::kGroup / Format::kWeights;

    float x[kCount];  // magnitudes; one of eight may be negative if its sign was flipped
    float weights[kCount], roots[kCount];
    uint8_t signs[kCount / 8];
    uint8_t levels[kCount];
    bool off_entry[kEntries];
    float scale = 0;

    void weigh(Values in, Values importance, float variance) {
        for (int i = 0; i < kCount; ++i) {
            const float square = in[i] * in[i];
            weights[i] = importance.empty() ? Format::plain_weight(variance, square)
                                            : importance[i] * std::sqrt(variance + square);
            roots[i] = std::sqrt(weights[i]);
        }
    }

    void take_signs(Values in) {
        for (int k = 0; k < kCount / 8; ++k) {
            int negative = 0;
            for (int i = 0; i < 8; ++i) {
                const float value = in[8 * k + i];
                const bool is_negative = !(value >= 0);
                x[8 * k + i] = is_negative ? -value : value;
                negative |= static_cast<int>(is_negative) << i;
            }
            if (Format::kEvenSigns && std::popcount(static_cast<unsigned>(negative)) % 2 != 0) {
                int least = 0;
                const auto cost = [&](int i) { return weights[8 * k + i] * in[8 * k + i] * in[8 * k + i]; };
                for (int i = 1; i < 8; ++i)
                    if (cost(i) < cost(least)) least = i;
                x[8 * k + least] = -x[8 * k + least];
                negative ^= 1 << least;
            }
            signs[k] = static_cast<uint8_t>(negative);
        }
    }

    uint32_t key(int entry) const {
        uint32_t result = 0;
        for (int i = 0; i < Format::kWeights; ++i)
            result |= static_cast<uint32_t>(levels[entry * Format::kWeights + i]) << (Format::kBits * i);
        return result;
    }

    // Sets the levels of one entry for a scale and its inverse: the nearest odd numbers or, if the codebook has no such
    // entry, its entry with the least error.
    void round_entry(int entry, float inverse, float candidate) {
        const CodebookSearch &search = Format::search();
        const int at = entry * Format::kWeights;
        for (int i = at; i < at + Format::kWeights; ++i)
            levels[i] =
                static_cast<uint8_t>(std::clamp(nearest_int(0.5f * (inverse * x[i] - 1)), 0, Format::kTop));
        const uint32_t point = key(entry);
        off_entry[entry] = search.entry(point) < 0;
        if (!off_entry[entry]) return;
        const auto neighbors = search.neighbors(point);
        uint16_t best = neighbors[0];
        float least = FLT_MAX;
        for (const uint16_t neighbor : neighbors) {
            const uint32_t code = search.code(neighbor);
            float error = 0;
            for (int i = 0; i < Format::kWeights; ++i) {
                const float difference = candidate * odd(code >> (Format::kBits * i)) - x[at + i];
                error += roots[at + i] * difference * difference;
            }
            if (error < least) least = error, best = neighbor;
        }
        for (int i = 0; i < Format::kWeights; ++i)
            levels[at + i] =
                static_cast<uint8_t>(search.code(best) >> (Format::kBits * i) & ((1 << Format::kBits) - 1));
    }

    struct Products {
        float xq = 0, qq = 0;
    };
    Products products() const {
        Products sums;
        for (int i = 0; i < kCount; ++i) {
            const auto q = static_cast<float>(2 * levels[i] + 1);
            sums.xq += weights[i] * x[i] * q;
            sums.qq += weights[i] * q * q;
        }
        return sums;
    }

    static float odd(uint32_t code) {
        return static_cast<float>(2 * (code & ((1 << Format::kBits) - 1)) + 1);
    }
};

// Finds levels and a scale that is not negative. Returns false if the group counts as zeros.
template <class Format>
bool fit(Group<Format> &group) {
    constexpr auto kOdd = static_cast<float>(2 * Format::kTop + 1);
    std::fill(std::begin(group.levels), std::end(group.levels), uint8_t{0});
    const float largest = *std::max_element(std::begin(group.x), std::end(group.x));
    if (!(largest >= Format::kNothing)) return false;
    float scale = largest / kOdd, reach = largest;
    if (Format::kSearchedStart) {
        uint8_t unused[Format::kGroup];
        scale = search_positive(group.x, Format::kTop + 2, group.weights, unused);
        reach = scale * (Format::kTop + 1);
        if (!(reach > 0)) return false;
    }
    Group<Format> tried = group;
    std::fill(std::begin(group.off_entry), std::end(group.off_entry), Format::kRefit != Refit::OffEntries);
    float best = 0;
    for (int k = -Format::kSteps; k <= Format::kSteps; ++k) {
        const float inverse = (kOdd + static_cast<float>(k) * Format::kStep) / reach;
        for (int e = 0; e < tried.kEntries; ++e) tried.round_entry(e, inverse, 1 / inverse);
        const auto sums = tried.products();
        if (sums.qq > 0 && sums.xq * sums.xq > best * sums.qq) {
            scale = sums.xq / sums.qq;
            best = scale * sums.xq;
            std::copy(std::begin(tried.levels), std::end(tried.levels), group.levels);
            std::copy(std::begin(tried.off_entry), std::end(tried.off_entry), group.off_entry);
        }
    }
    const bool any_off =
        std::find(std::begin(group.off_entry), std::end(group.off_entry), true) != std::end(group.off_entry);
    if (scale > 0 && (any_off || Format::kRefit == Refit::All)) {
        for (int e = 0; e < group.kEntries; ++e)
            if (group.off_entry[e] || Format::kRefit != Refit::OffEntries)
                group.round_entry(e, 1 / scale, scale);
        if (const auto sums = group.products(); sums.qq > 0) scale = sums.xq / sums.qq;
    }
    if (scale < 0) {
        scale = -scale;
        for (uint8_t &signs : group.signs) signs = static_cast<uint8_t>(~signs);
    }
    group.scale = scale;
    return true;
}

// Fits the groups of a block and calls put(number, group) for those that are not zeros. Returns the step of
// the scales, scale = step (2 s + 1), or 0 if all groups are zeros.
template <class Format, class Put>
float fit_groups(Values x, Values importance, uint8_t (&small)[kSuperBlock / Format::kGroup], Put put) {
    constexpr int kGroups = kSuperBlock / Format::kGroup;
    float squares = 0;
    for (const float value : x) squares += value * value;
    const float variance = Format::kVariance * squares / kSuperBlock;
    float scales[kGroups], largest = 0;
    for (int g = 0; g < kGroups; ++g) {
        Group<Format> group;
        const auto at = static_cast<size_t>(g * Format::kGroup);
        const Values in = x.subspan(at, Format::kGroup);
        group.weigh(in, importance.empty() ? importance : importance.subspan(at, Format::kGroup), variance);
        group.take_signs(in);
        if (fit(group)) put(g, group);
        scales[g] = group.scale;
        largest = std::max(largest, group.scale);
    }
    const float step = largest / 31, inverse = 1 / step;
    for (int g = 0; g < kGroups; ++g)
        small[g] = static_cast<uint8_t>(
            largest > 0 ? std::clamp(nearest_int(0.5f * (inverse * scales[g] - 1)), 0, 15) : 0);
    return step;
}

template <class Format>
int entry_of(const Group<Format> &group, int k) {
    return Format::search().entry(group.key(k));
}

uint32_t seven_signs(const uint8_t (&signs)[4]) {
    uint32_t bits = 0;
    for (int k = 0; k < 4; ++k) bits |= static_cast<uint32_t>(signs[k] & 127) << (7 * k);
    return bits;
}

}  // namespace

void standard_encode(Values x, Values importance, BlockIQ2_XXS &block) {
    block = {};
    uint8_t small[8];
    const float step = fit_groups<FormatIQ2_XXS>(x, importance, small, [&](int g, const auto &group) {
        const auto pair = [&](int k) {
            return static_cast<uint16_t>(entry_of(group, k) | entry_of(group, k + 1) << 8);
        };
        const uint32_t signs = seven_signs(group.signs);
        block.qs[4 * g] = pair(0);
        block.qs[4 * g + 1] = pair(2);
        block.qs[4 * g + 2] = static_cast<uint16_t>(signs);
        block.qs[4 * g + 3] = static_cast<uint16_t>(signs >> 16);
    });
    if (step == 0) block = {};
    block.d = f32_to_f16(step);
    for (int g = 0; g < 8; ++g)
        block.qs[4 * g + 3] = static_cast<uint16_t>(block.qs[4 * g + 3] | small[g] << 12);
}

void standard_encode(Values x, Values importance, BlockIQ2_XS &block) {
    block = {};
    uint8_t small[16];
    const float step = fit_groups<FormatIQ2_XS>(x, importance, small, [&](int g, const auto &group) {
        for (int k = 0; k < 2; ++k)
            block.qs[2 * g + k] = static_cast<uint16_t>(entry_of(group, k) | (group.signs[k] & 127) << 9);
    });
    if (step == 0) block = {};
    block.d = f32_to_f16(step);
    for (int g = 0; g < 8; ++g) block.scales[g] = static_cast<uint8_t>(small[2 * g] | small[2 * g + 1] << 4);
}

void standard_encode(Values x, Values importance, BlockIQ2_S &block) {
    block = {};
    uint8_t small[16];
    const float step = fit_groups<FormatIQ2_S>(x, importance, small, [&](int g, const auto &group) {
        for (int k = 0; k < 2; ++k) {
            const int at = 2 * g + k, entry = entry_of(group, k);
            block.qs[at] = static_cast<uint8_t>(entry);
            block.qh[at / 4] = static_cast<uint8_t>(block.qh[at / 4] | (entry >> 8) << (at % 4 * 2));
            block.signs[at] = group.signs[k];
        }
    });
    block.d = f32_to_f16(step * 0.9875f);
    for (int g = 0; g < 8; ++g) block.scales[g] = static_cast<uint8_t>(small[2 * g] | small[2 * g + 1] << 4);
}

void standard_encode(Values x, Values importance, BlockIQ3_XXS &block) {
    block = {};
    uint8_t small[8];
    uint32_t signs[8] = {};
    const float step = fit_groups<FormatIQ3_XXS>(x, importance, small, [&](int g, const auto &group) {
        for (int k = 0; k < 8; ++k) block.qs[8 * g + k] = static_cast<uint8_t>(entry_of(group, k));
        signs[g] = seven_signs(group.signs);
    });
    if (step == 0) {
        block = {};
        return;
    }
    block.d = f32_to_f16(step * 1.0125f);
    for (int g = 0; g < 8; ++g) {
        const uint32_t word = signs[g] | static_cast<uint32_t>(small[g]) << 28;
        for (int b = 0; b < 4; ++b) block.signs_scale[4 * g + b] = static_cast<uint8_t>(word >> (8 * b));
    }
}

// llama.cpp misplaces the groups of a block that follow a group of zeros, which changes their values; here
// they keep their place. All other blocks are the same.
void standard_encode(Values x, Values importance, BlockIQ3_S &block) {
    block = {};
    uint8_t small[8];
    const float step = fit_groups<FormatIQ3_S>(x, importance, small, [&](int g, const auto &group) {
        for (int k = 0; k < 8; ++k) {
            const int entry = entry_of(group, k);
            block.qs[8 * g + k] = static_cast<uint8_t>(entry);
            block.qh[g] = static_cast<uint8_t>(block.qh[g] | (entry >> 8) << k);
        }
        std::copy(std::begin(group.signs), std::end(group.signs), block.signs + 4 * g);
    });
    block.d = f32_to_f16(step * 1.033f);
    for (int g = 0; g < 4; ++g) block.scales[g] = static_cast<uint8_t>(small[2 * g] | small[2 * g + 1] << 4);
}

}  // namespace runnel::gguf
