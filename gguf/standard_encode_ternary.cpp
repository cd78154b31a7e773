// IQ1_S and IQ1_M: groups of 32 or 16 weights, each a scale times -1, 0 or 1, all shifted by 1/8 up or down.
//
// The values of a group are sorted; the smallest become -1, the largest 1. All such splits are tried, with both
// shifts (for IQ1_M of each half of the group), and the one with the least error at its best scale is kept.
// Then every eight levels are replaced by an entry of the codebook.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <iterator>
#include <numeric>

#include "gguf/codebook.h"
#include "gguf/codebook_search.h"
#include "gguf/scale_search.h"
#include "gguf/standard_encode.h"

namespace runnel::gguf {
namespace {

using Values = std::span<const float>;

constexpr float kShift = 0.125f;
// The values of the levels, shifted up or down.
constexpr float kUp[3] = {-1 + kShift, kShift, 1 + kShift};
constexpr float kDown[3] = {-1 - kShift, -kShift, 1 - kShift};
const float *points(bool down) {
    return down ? kDown : kUp;
}

void weigh(Values x, Values importance, float variance, std::span<float> weights) {
    for (size_t i = 0; i < x.size(); ++i)
        weights[i] = importance.empty() ? x[i] * x[i] : importance[i] * std::sqrt(variance + x[i] * x[i]);
}

float twice_mean_square(Values x) {
    float squares = 0;
    for (const float value : x) squares += value * value;
    return 2 * squares / kSuperBlock;
}

// The indices of `x` sorted by value, ascending; equal values keep their order.
template <int kCount>
void sort_places(Values x, int (&places)[kCount]) {
    std::iota(std::begin(places), std::end(places), 0);
    // An insertion sort: it is stable, and well defined for values that are not numbers.
    for (int i = 1; i < kCount; ++i)
        for (int j = i; j > 0 && x[places[j]] < x[places[j - 1]]; --j) std::swap(places[j], places[j - 1]);
}

// A split of the ordered values: before `low` they are -1, from `high` on 1.
struct Split {
    int low = -1, high = -1;
    float scale = 0, gain = -FLT_MAX;
    bool down[2] = {};  // for each half of the group: whether its levels are shifted down

    bool offer(int at_low, int at_high, float xq, float qq, bool first_down, bool second_down) {
        if (!(qq > 0 && xq * xq > gain * qq)) return false;
        scale = xq / qq;
        gain = scale * xq;
        low = at_low, high = at_high;
        down[0] = first_down, down[1] = second_down;
        return true;
    }
};

// The best split of a group of 32, with one shift for all its values.
Split best_split(Values x, Values weights, const int (&places)[32]) {
    constexpr int kCount = 32;
    float sum_x[kCount + 1] = {}, sum_w[kCount + 1] = {};
    for (int j = 0; j < kCount; ++j) {
        sum_x[j + 1] = sum_x[j] + weights[places[j]] * x[places[j]];
        sum_w[j + 1] = sum_w[j] + weights[places[j]];
    }
    Split best;
    for (int low = 0; low <= kCount; ++low)
        for (int high = low; high <= kCount; ++high) {
            const auto offer = [&](const float *q, bool down) {
                const float xq = sum_x[low] * q[0] + (sum_x[high] - sum_x[low]) * q[1] +
                                 (sum_x[kCount] - sum_x[high]) * q[2];
                const float qq = sum_w[low] * q[0] * q[0] + (sum_w[high] - sum_w[low]) * q[1] * q[1] +
                                 (sum_w[kCount] - sum_w[high]) * q[2] * q[2];
                best.offer(low, high, xq, qq, down, down);
            };
            offer(kUp, false);
            offer(kDown, true);
        }
    return best;
}

// The best split of a group of 16, with a shift for each half.
Split best_split(Values x, Values weights, const int (&places)[16]) {
    constexpr int kCount = 16;
    float sum_x[2][kCount + 1] = {}, sum_w[2][kCount + 1] = {};
    for (int j = 0; j < kCount; ++j) {
        const int place = places[j], half = place / 8;
        for (int h = 0; h < 2; ++h) {
            sum_x[h][j + 1] = sum_x[h][j];
            sum_w[h][j + 1] = sum_w[h][j];
        }
        sum_x[half][j + 1] += weights[place] * x[place];
        sum_w[half][j + 1] += weights[place];
    }
    Split best;
    for (int low = 0; low <= kCount; ++low)
        for (int high = low; high <= kCount; ++high) {
            float xq[2][2], qq[2][2];  // [shifted down][half]
            for (int down = 0; down < 2; ++down)
                for (int h = 0; h < 2; ++h) {
                    // Start with all values at the highest level and subtract for the lower ones; levels are
                    // one apart.
                    const float *q = points(down != 0);
                    const float first = q[0] * q[0] - q[1] * q[1], second = q[1] * q[1] - q[2] * q[2];
                    xq[down][h] = sum_x[h][kCount] * q[2] - (sum_x[h][low] + sum_x[h][high]);
                    qq[down][h] =
                        sum_w[h][kCount] * q[2] * q[2] + sum_w[h][low] * first + sum_w[h][high] * second;
                }
            for (int k = 0; k < 4; ++k) {
                const int a = k >> 1, b = k & 1;
                best.offer(low, high, xq[a][0] + xq[b][1], qq[a][0] + qq[b][1], a != 0, b != 0);
            }
        }
    return best;
}

// Entries for the levels of a group, its scale and its shifts.
template <int kCount>
struct TernaryGroup {
    int entries[kCount / 8] = {};
    float scale = 0;
    bool down[2] = {};  // for each half: whether its levels are shifted down

    // The values of the three levels in entry k.
    const float *levels_of(int k) const { return points(down[kCount == 16 ? k : 0]); }
};

int nearest_entry(const CodebookSearch &search, uint32_t key, Values x, Values weights, float scale,
                  const float *q) {
    if (const int entry = search.entry(key); entry >= 0) return entry;
    const auto neighbors = search.neighbors(key);
    int best = neighbors[0];
    float least = FLT_MAX;
    for (const uint16_t neighbor : neighbors) {
        const uint32_t code = search.code(neighbor);
        float error = 0;
        for (int i = 0; i < 8; ++i) {
            const float difference = scale * q[code >> (2 * i) & 3] - x[i];
            error += weights[i] * difference * difference;
        }
        if (error < least) least = error, best = neighbor;
    }
    return best;
}

template <int kCount>
TernaryGroup<kCount> fit(Values x, Values weights) {
    TernaryGroup<kCount> group;
    int places[kCount];
    sort_places(x, places);
    const Split split = best_split(x, weights, places);
    if (split.low < 0) return group;
    uint8_t levels[kCount];
    for (int j = 0; j < kCount; ++j)
        levels[places[j]] = static_cast<uint8_t>(j < split.low ? 0 : j < split.high ? 1 : 2);
    const bool turned = split.scale < 0;
    group.scale = turned ? -split.scale : split.scale;
    for (int h = 0; h < 2; ++h) group.down[h] = split.down[h] != turned;
    bool all_entries = true;
    const CodebookSearch &search = search_iq1();
    for (int k = 0; k < kCount / 8; ++k) {
        uint32_t key = 0;
        for (int i = 0; i < 8; ++i) {
            const int level = levels[8 * k + i];
            key |= static_cast<uint32_t>(turned ? 2 - level : level) << (2 * i);
        }
        all_entries = all_entries && search.entry(key) >= 0;
        const auto at = static_cast<size_t>(8 * k);
        group.entries[k] = nearest_entry(search, key, x.subspan(at, 8), weights.subspan(at, 8), group.scale,
                                         group.levels_of(k));
    }
    if (all_entries) return group;
    float xq = 0, qq = 0;
    for (int i = 0; i < kCount; ++i) {
        const float q = group.levels_of(i / 8)[search.code(group.entries[i / 8]) >> (i % 8 * 2) & 3];
        xq += weights[i] * q * x[i];
        qq += weights[i] * q * q;
    }
    if (xq > 0 && qq > 0) group.scale = xq / qq;
    return group;
}

float largest_magnitude(Values x) {
    float largest = 0;
    for (const float value : x) largest = std::max(largest, std::fabs(value));
    return largest;
}

int small_scale(float scale, float inverse) {
    return std::clamp(nearest_int(0.5f * (inverse * scale - 1)), 0, 7);
}

}  // namespace

void standard_encode(Values x, Values importance, BlockIQ1_S &block) {
    constexpr float kNothing = 1e-12f;
    block = {};
    const float variance = twice_mean_square(x);
    float scales[8] = {}, largest = 0;
    bool down[8] = {};
    for (int g = 0; g < 8; ++g) {
        const auto at = static_cast<size_t>(32 * g);
        const Values in = x.subspan(at, 32);
        if (!(largest_magnitude(in) >= kNothing)) continue;
        float weights[32];
        weigh(in, importance.subspan(at, 32), variance, weights);
        const TernaryGroup<32> group = fit<32>(in, weights);
        int high = 0;
        for (int k = 0; k < 4; ++k) {
            block.qs[4 * g + k] = static_cast<uint8_t>(group.entries[k]);
            high |= (group.entries[k] >> 8) << (3 * k);
        }
        block.qh[g] = static_cast<uint16_t>(high);
        scales[g] = group.scale;
        down[g] = group.down[0];
        largest = std::max(largest, group.scale);
    }
    if (largest == 0) return;
    const float step = largest / 15, inverse = 1 / step;
    block.d = f32_to_f16(step * 1.125f);
    for (int g = 0; g < 8; ++g) {
        const int s = small_scale(scales[g], inverse) | (down[g] ? 8 : 0);
        block.qh[g] = static_cast<uint16_t>(block.qh[g] | s << 12);
    }
}

void standard_encode(Values x, Values importance, BlockIQ1_M &block) {
    constexpr float kNothing = 1e-7f;
    block = {};
    const float variance = twice_mean_square(x);
    TernaryGroup<16> groups[16];
    float weights[kSuperBlock], largest = 0;
    weigh(x, importance, variance, weights);
    for (int g = 0; g < 16; ++g) {
        const auto at = static_cast<size_t>(16 * g);
        if (!(largest_magnitude(x.subspan(at, 16)) >= kNothing)) continue;
        groups[g] = fit<16>(x.subspan(at, 16), Values(weights).subspan(at, 16));
        block.qs[2 * g] = static_cast<uint8_t>(groups[g].entries[0]);
        block.qs[2 * g + 1] = static_cast<uint8_t>(groups[g].entries[1]);
        block.qh[g] = static_cast<uint8_t>(groups[g].entries[0] >> 8 | (groups[g].entries[1] >> 8) << 4);
        largest = std::max(largest, groups[g].scale);
    }
    if (largest == 0) return;
    // With all small scales known, the step is fitted once more.
    float step = largest / 15, xq = 0, qq = 0;
    const float inverse = 1 / step;
    uint16_t words[4] = {};
    for (int g = 0; g < 16; ++g) {
        const int s = small_scale(groups[g].scale, inverse);
        words[g / 4] = static_cast<uint16_t>(words[g / 4] | s << (g % 4 * 3));
        block.qh[g] =
            static_cast<uint8_t>(block.qh[g] | (groups[g].down[0] ? 8 : 0) | (groups[g].down[1] ? 0x80 : 0));
        for (int i = 0; i < 16; ++i) {
            const uint32_t code = search_iq1().code(groups[g].entries[i / 8]);
            const float q =
                groups[g].levels_of(i / 8)[code >> (i % 8 * 2) & 3] * static_cast<float>(2 * s + 1);
            const float w = weights[16 * g + i];
            xq += w * q * x[16 * g + i];
            qq += w * q * q;
        }
    }
    if (qq > 0) step = xq / qq;
    const uint16_t d = f32_to_f16(step * 1.1125f);
    for (int k = 0; k < 4; ++k) {
        const int word = words[k] | (d >> (4 * k) & 15) << 12;
        block.scales[2 * k] = static_cast<uint8_t>(word);
        block.scales[2 * k + 1] = static_cast<uint8_t>(word >> 8);
    }
}

}  // namespace runnel::gguf
