// The body of group_search.h for vectors of kLanes floats. Included once per instruction set, into an unnamed
// namespace: its functions must not be shared between files that are compiled for different processors.
//
// Values are transposed first: vector i holds value i of kLanes groups. Lanes of groups that do not exist hold
// zeros. Branches of the scalar code are selections here; what a lane computes in the branch not taken (it may
// divide by zero) is dropped.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>

#include "gguf/group_search.h"

namespace runnel::gguf {
namespace {

// (GCC ignores vector_size where it depends on a template's parameter.)
template <int kLanes>
struct Vectors;
template <>
struct Vectors<4> {
    using F = float __attribute__((vector_size(16)));
    using I = int32_t __attribute__((vector_size(16)));
    using Halves = uint16_t __attribute__((vector_size(8)));
    using Bytes = uint8_t __attribute__((vector_size(4)));
};
template <>
struct Vectors<8> {
    using F = float __attribute__((vector_size(32)));
    using I = int32_t __attribute__((vector_size(32)));
    using Halves = uint16_t __attribute__((vector_size(16)));
    using Bytes = uint8_t __attribute__((vector_size(8)));
};
template <>
struct Vectors<16> {
    using F = float __attribute__((vector_size(64)));
    using I = int32_t __attribute__((vector_size(64)));
    using Halves = uint16_t __attribute__((vector_size(32)));
    using Bytes = uint8_t __attribute__((vector_size(16)));
};

template <int kLanes>
struct Search {
    using F = typename Vectors<kLanes>::F;
    using I = typename Vectors<kLanes>::I;
    using Halves = typename Vectors<kLanes>::Halves;
    using Bytes = typename Vectors<kLanes>::Bytes;

    static constexpr float kNothing = 1e-15f;  // groups whose largest magnitude is below this are zeros
    static constexpr int kDescents = 5;

    static F all(float value) { return value - F{}; }
    static I all(int value) { return value - I{}; }
    static F to_float(I x) { return __builtin_convertvector(x, F); }
    static F magnitude(F x) { return std::bit_cast<F>(std::bit_cast<I>(x) & 0x7fffffff); }
    static I smaller(I a, I b) { return a < b ? a : b; }
    static I larger(I a, I b) { return a > b ? a : b; }
    static I clamp(I x, int low, int high) { return smaller(larger(x, all(low)), all(high)); }
    static I nearest(F x) { return (std::bit_cast<I>(x + 12582912.0f) & 0x007fffff) - 0x00400000; }
    static bool any(I mask) {
        int32_t bits = 0;
        for (int lane = 0; lane < kLanes; ++lane) bits |= mask[lane];
        return bits != 0;
    }
    static F root(F x) {
        for (int lane = 0; lane < kLanes; ++lane) x[lane] = std::sqrt(x[lane]);
        return x;
    }

    // kLanes groups from `first` on.
    struct Batch {
        F x[kLargestGroup], w[kLargestGroup];
        size_t first, lanes;
        int size;

        Batch(const Groups &groups, size_t from)
            : first(from),
              lanes(groups.count - from < kLanes ? groups.count - from : kLanes),
              size(groups.size) {
            transpose(groups.x, x);
            switch (groups.weighting) {
                case Weighting::Given:
                    transpose(groups.weights, w);
                    break;
                case Weighting::Magnitude:
                    for (int i = 0; i < size; ++i) w[i] = magnitude(x[i]);
                    break;
                case Weighting::RmsPlusMagnitude: {
                    F sum = {};
                    for (int i = 0; i < size; ++i) sum += x[i] * x[i];
                    const F rms = root(sum / static_cast<float>(size));
                    for (int i = 0; i < size; ++i) w[i] = rms + magnitude(x[i]);
                    break;
                }
                case Weighting::Square:
                    for (int i = 0; i < size; ++i) w[i] = x[i] * x[i];
                    break;
            }
        }

        void transpose(const float *from, F *to) const {
            alignas(64) float columns[kLargestGroup][kLanes];
            if (lanes < kLanes) std::memset(columns, 0, sizeof columns);
            from += first * static_cast<size_t>(size);
            for (size_t lane = 0; lane < lanes; ++lane, from += size)
                for (int i = 0; i < size; ++i) columns[i][lane] = from[i];
            std::memcpy(to, columns, static_cast<size_t>(size) * sizeof(F));
        }

        template <class Level>
        void store(const I *levels, Level *to) const {
            alignas(64) int32_t columns[kLargestGroup][kLanes];
            std::memcpy(columns, levels, static_cast<size_t>(size) * sizeof(I));
            to += first * static_cast<size_t>(size);
            for (size_t lane = 0; lane < lanes; ++lane, to += size)
                for (int i = 0; i < size; ++i) to[i] = static_cast<Level>(columns[i][lane]);
        }

        // The value of largest magnitude of each group, with its sign; the first among equals.
        F extreme() const {
            F best = {}, most = {};
            for (int i = 0; i < size; ++i) {
                const F a = magnitude(x[i]);
                const I more = a > most;
                most = more ? a : most;
                best = more ? x[i] : best;
            }
            return best;
        }
    };

    // The sums of scale_search.cpp's Products.
    struct Products {
        F xl = {}, ll = {};

        void add(F w, F x, F level) {
            xl += w * x * level;
            ll += w * level * level;
        }
        F scale_or_zero() const { return ll > 0 ? xl / ll : F{}; }
    };

    static void affine_batch(const Batch &b, int top, AffineCandidates candidates, uint8_t *levels,
                             ScaleAndMinimum *lines) {
        F low = b.x[0], high = b.x[0], sum_w = b.w[0], sum_x = b.w[0] * b.x[0];
        for (int i = 1; i < b.size; ++i) {
            low = b.x[i] < low ? b.x[i] : low;
            high = high < b.x[i] ? b.x[i] : high;
            sum_w += b.w[i];
            sum_x += b.w[i] * b.x[i];
        }
        low = low > 0 ? F{} : low;
        const I alive = high > low;
        const F lowest = low;
        const auto n = static_cast<float>(top);
        const auto level_of = [&](F value, F inverse, F from) {
            return clamp(nearest(inverse * (value - from)), 0, top);
        };
        F tried[kLargestGroup];
        const auto error = [&](F scale, F minimum) {
            F sum = {};
            if (candidates.absolute_error)
                for (int i = 0; i < b.size; ++i)
                    sum += b.w[i] * magnitude(scale * tried[i] + minimum - b.x[i]);
            else
                for (int i = 0; i < b.size; ++i) {
                    const F difference = scale * tried[i] + minimum - b.x[i];
                    sum += b.w[i] * (difference * difference);
                }
            return sum;
        };
        F best_inverse = n / (high - low), best_from = low, scale = 1 / best_inverse;
        for (int i = 0; i < b.size; ++i) tried[i] = to_float(level_of(b.x[i], best_inverse, low));
        F best = error(scale, low);
        for (int k = 0; k <= candidates.last; ++k) {
            const F inverse = (candidates.first + candidates.step * static_cast<float>(k) + n) / (high - low);
            F l_sum = {}, ll_sum = {}, xl_sum = {};
            for (int i = 0; i < b.size; ++i) {
                const F level = to_float(level_of(b.x[i], inverse, low)), weighted = b.w[i] * level;
                tried[i] = level;
                l_sum += weighted;
                ll_sum += weighted * level;
                xl_sum += weighted * b.x[i];
            }
            const F determinant = sum_w * ll_sum - l_sum * l_sum;
            F now_scale = (sum_w * xl_sum - sum_x * l_sum) / determinant;
            F now_low = (ll_sum * sum_x - l_sum * xl_sum) / determinant;
            const I positive = now_low > 0;
            now_low = positive ? F{} : now_low;
            now_scale = positive ? xl_sum / ll_sum : now_scale;
            const F now = error(now_scale, now_low);
            const I better = (determinant > 0) & (now < best);
            best_inverse = better ? inverse : best_inverse;
            best_from = better ? low : best_from;
            best = better ? now : best;
            scale = better ? now_scale : scale;
            low = better ? now_low : low;
        }
        I found[kLargestGroup];
        for (int i = 0; i < b.size; ++i) found[i] = level_of(b.x[i], best_inverse, best_from) & alive;
        b.store(found, levels);
        scale = alive ? scale : F{};
        low = alive ? low : lowest;
        for (size_t lane = 0; lane < b.lanes; ++lane) lines[b.first + lane] = {scale[lane], -low[lane]};
    }

    static void affine(const Groups &groups, int top, AffineCandidates candidates, uint8_t *levels,
                       ScaleAndMinimum *lines) {
        for (size_t first = 0; first < groups.count; first += kLanes)
            affine_batch(Batch(groups, first), top, candidates, levels, lines);
    }

    static void symmetric_batch(const Batch &b, int top, int8_t *levels, float *scales) {
        const F largest = b.extreme();
        const I alive = magnitude(largest) >= kNothing;
        F wx[kLargestGroup];
        for (int i = 0; i < b.size; ++i) wx[i] = b.w[i] * b.x[i];
        const auto level_of = [&](F x, F inverse) { return clamp(nearest(inverse * x), -top, top - 1); };
        const auto products = [&](F inverse) {
            Products sums;
            for (int i = 0; i < b.size; ++i) {
                const F level = to_float(level_of(b.x[i], inverse));
                sums.xl += wx[i] * level;
                sums.ll += b.w[i] * level * level;
            }
            return sums;
        };
        const auto n = static_cast<float>(top);
        F best_inverse = -n / largest;
        const Products plain = products(best_inverse);
        F scale = plain.ll != 0 ? plain.xl / plain.ll : F{};
        F best = scale * plain.xl;
        for (int k = -9; k <= 9; ++k) {
            if (k == 0) continue;
            const F inverse = -(n + 0.1f * static_cast<float>(k)) / largest;
            const Products sums = products(inverse);
            const I better = (sums.ll > 0) & (sums.xl * sums.xl > best * sums.ll);
            const F now = sums.xl / sums.ll;
            best_inverse = better ? inverse : best_inverse;
            scale = better ? now : scale;
            best = better ? now * sums.xl : best;
        }
        I found[kLargestGroup];
        for (int i = 0; i < b.size; ++i) found[i] = (level_of(b.x[i], best_inverse) + top) & alive;
        b.store(found, levels);
        scale = alive ? scale : F{};
        for (size_t lane = 0; lane < b.lanes; ++lane) scales[b.first + lane] = scale[lane];
    }

    static void symmetric(const Groups &groups, int top, int8_t *levels, float *scales) {
        for (size_t first = 0; first < groups.count; first += kLanes)
            symmetric_batch(Batch(groups, first), top, levels, scales);
    }

    // One step of coordinate descent: changes `level` in the lanes of `part` where that lowers the error. Skips lanes
    // where xl without this value (with `both`, xl or ll) is not positive.
    template <class Move>
    static I descend_value(F w, F x, I &level, Products &sums, I part, bool both, Move move) {
        const F was = to_float(level);
        F xl = sums.xl - w * x * was, ll = sums.ll - w * was * was;
        part &= xl > 0;
        if (both) part &= ll > 0;
        const I moved = move(x * ll / xl);
        part &= moved != level;
        const F m = to_float(moved);
        xl += w * x * m;
        ll += w * m * m;
        if (!both) part &= ll > 0;
        part &= xl * xl * sums.ll > sums.xl * sums.xl * ll;
        level = part ? moved : level;
        sums.xl = part ? xl : sums.xl;
        sums.ll = part ? ll : sums.ll;
        return part;
    }

    static void descend_batch(const Batch &b, int top, int8_t *levels, float *scales) {
        const F largest = b.extreme();
        const I alive = magnitude(largest) >= kNothing;
        const F inverse = -static_cast<float>(top) / largest;
        const auto clamped = [&](F x) { return clamp(nearest(x), -top, top - 1); };
        I found[kLargestGroup];
        Products sums;
        for (int i = 0; i < b.size; ++i) {
            found[i] = clamped(inverse * b.x[i]);
            sums.add(b.w[i], b.x[i], to_float(found[i]));
        }
        I going = alive;
        for (int round = 0; round < kDescents && any(going); ++round) {
            I changed = {};
            for (int i = 0; i < b.size; ++i)
                changed |= descend_value(b.w[i], b.x[i], found[i], sums, going, false, clamped);
            going = changed;
        }
        for (int i = 0; i < b.size; ++i) found[i] = (found[i] + top) & alive;
        b.store(found, levels);
        const F scale = alive ? sums.scale_or_zero() : F{};
        for (size_t lane = 0; lane < b.lanes; ++lane) scales[b.first + lane] = scale[lane];
    }

    static void descend(const Groups &groups, int top, int8_t *levels, float *scales) {
        for (size_t first = 0; first < groups.count; first += kLanes)
            descend_batch(Batch(groups, first), top, levels, scales);
    }

    static void positive_batch(const Batch &b, int top, uint8_t *levels, float *scales) {
        F largest = {};
        for (int i = 0; i < b.size; ++i) largest = largest < b.x[i] ? b.x[i] : largest;
        const I alive = largest >= kNothing;
        const auto n = static_cast<float>(top);
        const auto error = [&](F inverse, bool first) {
            const F scale = 1 / inverse;
            F sum = {};
            for (int i = 0; i < b.size; ++i) {
                const I level = nearest(inverse * b.x[i]);
                const F difference =
                    b.x[i] - scale * to_float(first ? level & 255 : smaller(level, all(top)));
                sum += b.w[i] * difference * difference;
            }
            return sum;
        };
        F best_inverse = n / largest, best = error(best_inverse, true);
        for (int k = -4; k <= 4; ++k) {
            if (k == 0) continue;
            const F inverse = (0.1f * static_cast<float>(k) + n) / largest;
            const F now = error(inverse, false);
            const I better = now < best;
            best = better ? now : best;
            best_inverse = better ? inverse : best_inverse;
        }
        const auto limited = [&](F x) { return smaller(nearest(x), all(top)); };
        I found[kLargestGroup];
        Products sums;
        for (int i = 0; i < b.size; ++i) {
            const I level = limited(best_inverse * b.x[i]);
            found[i] = level & 255;
            sums.add(b.w[i], b.x[i], to_float(level));
        }
        I going = alive;
        for (int round = 0; round < kDescents && any(going); ++round) {
            I changed = {};
            for (int i = 0; i < b.size; ++i) {
                changed |= descend_value(b.w[i], b.x[i], found[i], sums, going, true, limited);
                found[i] &= 255;
            }
            going = changed;
        }
        for (int i = 0; i < b.size; ++i) found[i] &= alive;
        b.store(found, levels);
        const F scale = alive ? sums.scale_or_zero() : F{};
        for (size_t lane = 0; lane < b.lanes; ++lane) scales[b.first + lane] = scale[lane];
    }

    static void positive(const Groups &groups, int top, uint8_t *levels, float *scales) {
        for (size_t first = 0; first < groups.count; first += kLanes)
            positive_batch(Batch(groups, first), top, levels, scales);
    }

    static void round(const float *x, int n, ScaleAndMinimum line, int low, int high, uint8_t *levels) {
        for (int i = 0; i < n; i += kLanes) {
            const int count = n - i < kLanes ? n - i : kLanes;
            F value = {};
            if (count == kLanes)
                std::memcpy(&value, x + i, sizeof value);
            else
                std::memcpy(&value, x + i, static_cast<size_t>(count) * sizeof(float));
            const I level = clamp(nearest((value + line.minimum) / line.scale), low, high) - low;
            const Bytes bytes = __builtin_convertvector(level, Bytes);
            if (count == kLanes)
                std::memcpy(levels + i, &bytes, sizeof bytes);
            else
                std::memcpy(levels + i, &bytes, static_cast<size_t>(count));
        }
    }

    static void weigh(const float *x, const float *importance, float variance, int n, float *weights) {
        for (int i = 0; i < n; ++i) weights[i] = importance[i] * std::sqrt(variance + x[i] * x[i]);
    }

    static void from_f16(const std::byte *numbers, float *out, int64_t n) {
        for (int64_t i = 0; i < n; i += kLanes) {
            const auto count = static_cast<size_t>(n - i < kLanes ? n - i : kLanes);
            Halves halves = {};
            if (count == kLanes)
                std::memcpy(&halves, numbers + 2 * i, sizeof halves);
            else
                std::memcpy(&halves, numbers + 2 * i, 2 * count);
            // f16_to_f32() of half.h.
            const I half = __builtin_convertvector(halves, I);
            const I sign = (half & 0x8000) << 16, size = half & 0x7fff;
            const I small = std::bit_cast<I>(to_float(size) * 0x1p-24f);
            const I large = size << 13 | 0x7f800000 | (size > 0x7c00 ? all(0x400000) : I{});
            I bits = (size << 13) + (112 << 23);
            bits = size < 0x400 ? small : size >= 0x7c00 ? large : bits;
            bits |= sign;
            if (count == kLanes)
                std::memcpy(out + i, &bits, sizeof bits);
            else
                std::memcpy(out + i, &bits, 4 * count);
        }
    }

    static constexpr GroupSearch table(const char *name) {
        return {name, affine, symmetric, descend, positive, round, weigh, from_f16};
    }
};

}  // namespace
}  // namespace runnel::gguf
