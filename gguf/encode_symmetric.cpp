// Formats whose groups have a scale and no minimum: x ~ d * l * v with v from a codebook (consecutive
// integers, or the table of IQ4), l a small integer per group and d a float16 per block.
//
// The search: per group, candidate scales map the extreme value to various points near the ends of the
// codebook; with the levels v that result, the best scale is the least-squares fit sum(x v) / sum(v v),
// which lowers the squared error by gain = sum(x v)^2 / sum(v v). The best group scales are then
// rounded to d * l, the neighbors of every l are tried with the levels they imply, and d is fitted
// again to all groups together.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "gguf/encode.h"
#include "gguf/lanes.h"
#include "gguf/scales.h"

namespace runnel::gguf {
namespace {

constexpr float kLargestHalf = 65504;

// v = lo, lo + 1, ..., hi.
struct Integers {
    float lo, hi;
    static constexpr float end_step = 1;  // between the outermost two values
    Lanes nearest(Lanes y) const { return clamp_lanes(round_lanes(y), lo, hi); }
};

// The values of IQ4_NL. All midpoints between two of them are multiples of a half, so the integer part of 2 y
// decides which one is nearest.
struct IQ4Table {
    static constexpr float lo = -127, hi = 113, end_step = 23;
    static constexpr int kReach = 256;
    static constexpr std::array<uint8_t, 2 *kReach> kIndex = [] {
        std::array<uint8_t, 2 * kReach> index{};
        for (int i = 0; i < 2 * kReach; ++i) {
            int q = 0;
            while (q < 15 && i - kReach >= kIQ4Values[q] + kIQ4Values[q + 1]) ++q;
            index[static_cast<size_t>(i)] = static_cast<uint8_t>(q);
        }
        return index;
    }();
    static int nearest_index(float y) {
        // NaN (from a scale too small to have an inverse) counts as low; clamp() would leave it NaN.
        const float place = 2 * y + kReach;
        return kIndex[place > 0 ? static_cast<size_t>(std::min(place, 2.0f * kReach - 1)) : 0];
    }
    Lanes nearest(Lanes y) const {
        for (int k = 0; k < 4; ++k) y[k] = kIQ4Values[nearest_index(y[k])];
        return y;
    }
};

// Sums for the levels nearest to x / scale: xv = sum(x v), vv = sum(v v).
struct Sums {
    float xv = 0, vv = 0;
    float scale() const { return vv > 0 ? xv / vv : 0; }
    float gain() const { return vv > 0 ? xv * xv / vv : 0; }  // with the best scale
    float gain(float with_scale) const { return with_scale * (2 * xv - with_scale * vv); }
};

template <class Codebook>
Sums sums(const float *x, int n, float inverse_scale, Codebook book) {
    Lanes xv = {}, vv = {};
    for (int i = 0; i < n; i += 4) {
        const Lanes value = load_lanes(x + i), v = book.nearest(value * inverse_scale);
        xv += value * v;
        vv += v * v;
    }
    return {sum_lanes(xv), sum_lanes(vv)};
}

float extreme(const float *x, int n) {
    float best = 0;
    for (int i = 0; i < n; ++i)
        if (std::fabs(x[i]) > std::fabs(best)) best = x[i];
    return best;
}

// The best scale of a group.
template <class Codebook>
float search_scale(const float *x, int n, Codebook book, Effort effort) {
    const float most = extreme(x, n);
    if (std::fabs(most) < 1e-30f) return 0;  // too small for a float16 scale
    if (effort == Effort::Plain) return most / book.lo;
    Sums best;
    const auto attempt = [&](float inverse_scale) {
        const Sums s = sums(x, n, inverse_scale, book);
        if (s.gain() <= best.gain()) return false;
        best = s;
        return true;
    };
    const bool fast = effort == Effort::Fast;
    // The extreme value maps to points from one step short of the codebook's end to one step beyond (clipped).
    const int steps = fast ? 1 : 6;
    for (int k = -steps; k <= steps; ++k) {
        const float shift = book.end_step * static_cast<float>(k) / static_cast<float>(fast ? 3 : steps);
        attempt((book.lo + shift) / most);
        if (!fast) attempt((book.hi + shift) / most);
    }
    for (int again = 0; again < 3 && attempt(1 / best.scale());) ++again;
    return best.scale();
}

// A block of kGroups groups of 256 / kGroups values, with scales d * l, l in [lo, hi].
template <int kGroups, class Codebook>
class Block {
  public:
    static constexpr int kGroup = kSuperBlock / kGroups;

    Block(const float *x, Codebook book, int lo, int hi, Effort effort)
        : x_(x), book_(book), lo_(lo), hi_(hi) {
        float scales[kGroups];
        for (int g = 0; g < kGroups; ++g) scales[g] = search_scale(x + g * kGroup, kGroup, book, effort);
        set_d(extreme(scales, kGroups) / static_cast<float>(lo));
        if (d_ == 0) return;
        for (int g = 0; g < kGroups; ++g) l_[g] = clamp_l(static_cast<int>(std::lround(scales[g] / d_)));
        if (effort != Effort::Thorough) return;
        Block best = *this;
        float best_gain = 0;
        for (int round = 0; round < 3; ++round) {
            const auto [gain, d] = improve_l();
            if (gain <= best_gain) break;
            best = *this;
            best_gain = gain;
            set_d(d);
            if (d_ == 0) break;
        }
        *this = best;
    }

    uint16_t d_bits() const { return f32_to_f16(d_); }
    int l(int g) const { return l_[g]; }
    // x / (d * l), whose nearest codebook value is the level of weight i; 0 where the scale is 0.
    float scaled(int i) const {
        const float scale = d_ * static_cast<float>(l_[i / kGroup]);
        return scale != 0 ? x_[i] / scale : 0;
    }

  private:
    void set_d(float d) { d_ = f16_to_f32(f32_to_f16(std::clamp(d, -kLargestHalf, kLargestHalf))); }
    int clamp_l(int l) const { return std::clamp(l, lo_, hi_); }

    struct Improved {
        float gain, d;  // the gain over all groups with the present d; the d that fits best now
    };
    // Moves every l to the better of itself and its neighbors.
    Improved improve_l() {
        float total = 0, num = 0, den = 0;
        for (int g = 0; g < kGroups; ++g) {
            float best_gain = 0;
            int best_l = 0;
            Sums best;
            for (int l = clamp_l(l_[g] - 1); l <= clamp_l(l_[g] + 1); ++l) {
                if (l == 0) continue;
                const float scale = d_ * static_cast<float>(l);
                const Sums s = sums(x_ + g * kGroup, kGroup, 1 / scale, book_);
                if (s.gain(scale) > best_gain) best_gain = s.gain(scale), best_l = l, best = s;
            }
            l_[g] = best_l;
            total += best_gain;
            num += static_cast<float>(best_l) * best.xv;
            den += static_cast<float>(best_l * best_l) * best.vv;
        }
        return {total, den > 0 ? num / den : 0};
    }

    const float *x_;
    Codebook book_;
    int lo_, hi_;
    float d_ = 0;
    std::array<int, kGroups> l_{};
};

int nearest_integer(float y, int lo, int hi) {
    return static_cast<int>(std::lround(std::clamp(y, static_cast<float>(lo), static_cast<float>(hi))));
}

}  // namespace

void encode(const float *in, BlockQ3_K &out, Effort effort) {
    const Block<16, Integers> block(in, Integers{-4, 3}, -32, 31, effort);
    out = {};
    out.d = block.d_bits();
    uint8_t scales[16];
    for (int g = 0; g < 16; ++g) scales[g] = static_cast<uint8_t>(block.l(g) + 32);
    pack_q3_scales(scales, out.scales);
    for (int i = 0; i < kSuperBlock; ++i) {
        const int q = nearest_integer(block.scaled(i), -4, 3) + 4;
        uint8_t &low = out.qs[i / 128 * 32 + i % 32], &high = out.hmask[i % 32];
        low = static_cast<uint8_t>(low | (q & 3) << (i / 32 % 4 * 2));
        high = static_cast<uint8_t>(high | (q >> 2) << (i / 32));
    }
}

void encode(const float *in, BlockQ6_K &out, Effort effort) {
    const Block<16, Integers> block(in, Integers{-32, 31}, -128, 127, effort);
    out = {};
    out.d = block.d_bits();
    for (int g = 0; g < 16; ++g) out.scales[g] = static_cast<int8_t>(block.l(g));
    for (int i = 0; i < kSuperBlock; ++i) {
        const int q = nearest_integer(block.scaled(i), -32, 31) + 32;
        uint8_t &low = out.ql[i / 128 * 64 + i % 64], &high = out.qh[i / 128 * 32 + i % 32];
        low = static_cast<uint8_t>(low | (q & 15) << (i / 64 % 2 * 4));
        high = static_cast<uint8_t>(high | (q >> 4) << (i / 32 % 4 * 2));
    }
}

void encode(const float *in, BlockIQ4_XS &out, Effort effort) {
    const Block<8, IQ4Table> block(in, IQ4Table{}, -32, 31, effort);
    out = {};
    out.d = block.d_bits();
    for (int g = 0; g < 8; ++g) {
        const int l = block.l(g) + 32;
        out.scales_l[g / 2] = static_cast<uint8_t>(out.scales_l[g / 2] | (l & 15) << (g % 2 * 4));
        out.scales_h = static_cast<uint16_t>(out.scales_h | (l >> 4) << (2 * g));
    }
    for (int i = 0; i < kSuperBlock; ++i) {
        uint8_t &byte = out.qs[i / 32 * 16 + i % 16];
        byte = static_cast<uint8_t>(byte | IQ4Table::nearest_index(block.scaled(i)) << (i / 16 % 2 * 4));
    }
}

void encode(const float *in, BlockIQ4_NL &out, Effort effort) {
    const float fitted = std::clamp(search_scale(in, 32, IQ4Table{}, effort), -kLargestHalf, kLargestHalf);
    out = {};
    out.d = f32_to_f16(fitted);
    const float d = f16_to_f32(out.d), inverse = d != 0 ? 1 / d : 0;
    for (int i = 0; i < 32; ++i) {
        const int q = IQ4Table::nearest_index(in[i] * inverse);
        out.qs[i % 16] = static_cast<uint8_t>(out.qs[i % 16] | q << (i / 16 * 4));
    }
}

}  // namespace runnel::gguf
