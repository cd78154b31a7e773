// Formats whose groups have a scale and a minimum: x ~ d * s * q - dmin * m, with q = 0..kTop per weight,
// small integers s and m per group, and two float16 numbers per block.
//
// The search: per group, candidate scales map the range of the values to the levels more or less tightly;
// with the levels q that result, scale and offset are the least-squares fit of a line. Scales and minimums
// are then rounded to d * s and dmin * m, neighboring (s, m) are tried with the levels they imply, and d and
// dmin are fitted again to all groups together.
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

float to_half(float value) {
    return f16_to_f32(f32_to_f16(std::clamp(value, 0.0f, kLargestHalf)));
}

// x ~ scale * q - minimum, both at least 0.
struct Line {
    float scale = 0, minimum = 0;
};

// Sums over a group for the levels q nearest to (x + minimum) / scale.
struct Sums {
    float q = 0, qq = 0, x = 0, xq = 0, n = 0;

    // The best line for these levels.
    Line fit() const {
        const float determinant = n * qq - q * q;
        if (determinant > 0) {
            const Line line{(n * xq - x * q) / determinant, (q * xq - qq * x) / determinant};
            if (line.minimum >= 0 && line.scale >= 0) return line;
        }
        if (qq > 0 && xq > 0) return {xq / qq, 0};
        return {0, std::max(0.0f, -x / n)};
    }
    // The decrease of the squared error that the line achieves, relative to sum(x x).
    float gain(Line line) const {
        const float s = line.scale, m = line.minimum;
        return 2 * s * xq - 2 * m * x - s * s * qq + 2 * s * m * q - m * m * n;
    }
};

Sums sums(const float *x, int n, Line line, float top) {
    const float inverse = line.scale > 0 ? 1 / line.scale : 0;
    Lanes q_sum = {}, qq = {}, x_sum = {}, xq = {};
    for (int i = 0; i < n; i += 4) {
        const Lanes value = load_lanes(x + i);
        const Lanes q = clamp_lanes(round_lanes((value + line.minimum) * inverse), 0, top);
        q_sum += q;
        qq += q * q;
        x_sum += value;
        xq += value * q;
    }
    return {sum_lanes(q_sum), sum_lanes(qq), sum_lanes(x_sum), sum_lanes(xq), static_cast<float>(n)};
}

Line search_line(const float *x, int n, float top, Effort effort) {
    const auto [min, max] = std::minmax_element(x, x + n);
    const float low = std::min(0.0f, *min), range = *max - low;
    if (!(range > 1e-30f)) return {0, -low};
    Line best;
    float best_gain = -1;
    if (effort == Effort::Plain) return {range / top, -low};
    const auto attempt = [&](Line line) {
        const Sums s = sums(x, n, line, top);
        const Line fitted = s.fit();
        const float gain = s.gain(fitted);
        if (!(gain > best_gain)) return false;
        best = fitted;
        best_gain = gain;
        return true;
    };
    const bool fast = effort == Effort::Fast;
    // Levels above the top mean clipping: the largest values lose a little so that all others gain.
    const float step = fast ? 0.35f : 0.2f;
    for (int k = fast ? -1 : -4; k <= (fast ? 1 : 16); ++k)
        attempt({range / (top + static_cast<float>(k) * step), -low});
    for (int again = 0; again < (fast ? 1 : 4) && attempt(best);) ++again;
    return best;
}

// A block of kGroups groups with s and m in 0..kLimit.
template <int kGroups, int kTop, int kLimit>
class Block {
  public:
    static constexpr int kGroup = kSuperBlock / kGroups;

    Block(const float *x, Effort effort) : x_(x) {
        std::array<Line, kGroups> lines;
        float most_scale = 0, most_minimum = 0;
        for (int g = 0; g < kGroups; ++g) {
            lines[g] = search_line(x + g * kGroup, kGroup, kTop, effort);
            most_scale = std::max(most_scale, lines[g].scale);
            most_minimum = std::max(most_minimum, lines[g].minimum);
        }
        d_ = to_half(most_scale / kLimit);
        dmin_ = to_half(most_minimum / kLimit);
        for (int g = 0; g < kGroups; ++g) {
            s_[g] = rounded(lines[g].scale, d_);
            m_[g] = rounded(lines[g].minimum, dmin_);
        }
        if (effort == Effort::Thorough) improve();
    }

    uint16_t d_bits() const { return f32_to_f16(d_); }
    uint16_t dmin_bits() const { return f32_to_f16(dmin_); }
    uint8_t s(int g) const { return static_cast<uint8_t>(s_[g]); }
    uint8_t m(int g) const { return static_cast<uint8_t>(m_[g]); }
    int level(int i) const {
        const Line line = this->line(s_[i / kGroup], m_[i / kGroup]);
        if (!(line.scale > 0)) return 0;
        return static_cast<int>(
            std::lround(std::clamp((x_[i] + line.minimum) / line.scale, 0.0f, float{kTop})));
    }

  private:
    static int rounded(float value, float unit) {
        return unit > 0 ? static_cast<int>(std::lround(std::clamp(value / unit, 0.0f, float{kLimit}))) : 0;
    }
    Line line(int s, int m) const { return {d_ * static_cast<float>(s), dmin_ * static_cast<float>(m)}; }

    void improve() {
        Block best = *this;
        float best_gain = -INFINITY;
        for (int round = 0; round < 3; ++round) {
            const auto [gain, next] = improve_groups();
            if (!(gain > best_gain)) break;
            best = *this;
            best_gain = gain;
            d_ = to_half(next.scale);
            dmin_ = to_half(next.minimum);
        }
        *this = best;
    }

    struct Improved {
        float gain;  // over all groups, with the present d and dmin
        Line next;   // the d and dmin that fit best now
    };
    // Moves every (s, m) to the best of itself and its eight neighbors.
    Improved improve_groups() {
        float total = 0, aa = 0, ab = 0, bb = 0, xa = 0, xb = 0;  // a = s q, b = m: x ~ d a - dmin b
        for (int g = 0; g < kGroups; ++g) {
            const int s0 = s_[g], m0 = m_[g];
            float best_gain = -INFINITY;
            Sums best;
            for (int s = std::max(0, s0 - 1); s <= std::min(kLimit, s0 + 1); ++s)
                for (int m = std::max(0, m0 - 1); m <= std::min(kLimit, m0 + 1); ++m) {
                    const Sums now = sums(x_ + g * kGroup, kGroup, line(s, m), kTop);
                    const float gain = now.gain(line(s, m));
                    if (gain > best_gain) best_gain = gain, best = now, s_[g] = s, m_[g] = m;
                }
            const auto s = static_cast<float>(s_[g]), m = static_cast<float>(m_[g]);
            total += best_gain;
            aa += s * s * best.qq;
            ab += s * m * best.q;
            bb += m * m * best.n;
            xa += s * best.xq;
            xb += m * best.x;
        }
        return {total, fit(aa, ab, bb, xa, xb)};
    }

    // Minimizes sum (x - d a + dmin b)^2 over d, dmin >= 0.
    static Line fit(float aa, float ab, float bb, float xa, float xb) {
        const float determinant = aa * bb - ab * ab;
        if (determinant > 0) {
            const Line line{(xa * bb - xb * ab) / determinant, (xa * ab - xb * aa) / determinant};
            if (line.scale >= 0 && line.minimum >= 0) return line;
        }
        if (aa > 0 && xa > 0) return {xa / aa, 0};
        return {0, bb > 0 ? std::max(0.0f, -xb / bb) : 0};
    }

    const float *x_;
    float d_ = 0, dmin_ = 0;
    std::array<int, kGroups> s_{}, m_{};
};

template <class Searched>
void pack_scales(const Searched &block, uint8_t (&packed)[12]) {
    ScalesAndMins both{};
    for (int g = 0; g < 8; ++g) {
        both.scales[g] = block.s(g);
        both.mins[g] = block.m(g);
    }
    pack_scales_mins(both, packed);
}

}  // namespace

void encode(const float *in, BlockQ2_K &out, Effort effort) {
    const Block<16, 3, 15> block(in, effort);
    out = {};
    out.d = block.d_bits();
    out.dmin = block.dmin_bits();
    for (int g = 0; g < 16; ++g) out.scales[g] = static_cast<uint8_t>(block.s(g) | block.m(g) << 4);
    for (int i = 0; i < kSuperBlock; ++i) {
        uint8_t &byte = out.qs[i / 128 * 32 + i % 32];
        byte = static_cast<uint8_t>(byte | block.level(i) << (i / 32 % 4 * 2));
    }
}

void encode(const float *in, BlockQ4_K &out, Effort effort) {
    const Block<8, 15, 63> block(in, effort);
    out = {};
    out.d = block.d_bits();
    out.dmin = block.dmin_bits();
    pack_scales(block, out.scales);
    for (int i = 0; i < kSuperBlock; ++i) {
        uint8_t &byte = out.qs[i / 64 * 32 + i % 32];
        byte = static_cast<uint8_t>(byte | block.level(i) << (i / 32 % 2 * 4));
    }
}

void encode(const float *in, BlockQ5_K &out, Effort effort) {
    const Block<8, 31, 63> block(in, effort);
    out = {};
    out.d = block.d_bits();
    out.dmin = block.dmin_bits();
    pack_scales(block, out.scales);
    for (int i = 0; i < kSuperBlock; ++i) {
        const int q = block.level(i);
        uint8_t &low = out.qs[i / 64 * 32 + i % 32], &high = out.qh[i % 32];
        low = static_cast<uint8_t>(low | (q & 15) << (i / 32 % 2 * 4));
        high = static_cast<uint8_t>(high | (q >> 4) << (i / 32));
    }
}

}  // namespace runnel::gguf
