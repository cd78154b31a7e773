// The searches of many groups at once against those of one group, bit for bit, on every instruction set that this
// machine has.
#include "gguf/group_search.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "gguf/half.h"
#include "tests/support/random.h"

using namespace runnel;
using namespace runnel::gguf;

namespace {

std::vector<const GroupSearch *> searches() {
    std::vector<const GroupSearch *> all = {&group_search_scalar()};
    if (group_search_avx2()) all.push_back(group_search_avx2());
    if (group_search_avx512()) all.push_back(group_search_avx512());
    return all;
}

// Groups of `size` values of twelve kinds in turn: ordinary ones, and those where a search has special cases.
std::vector<float> group_values(testing::Random &random, size_t groups, size_t size) {
    std::vector<float> values(groups * size);
    for (size_t g = 0; g < groups; ++g)
        for (size_t i = 0; i < size; ++i) {
            const float x = random.normal();
            float &out = values[g * size + i];
            switch (g % 12) {
                case 1:
                    out = i % 2 ? -0.0f : 0.0f;
                    break;
                case 2:
                    out = 0.375f;
                    break;
                case 3:
                    out = -0.375f;
                    break;
                case 4:
                    out = x * 1e-39f;
                    break;
                case 5:
                    out = x * 1e17f;
                    break;
                case 6:
                    out = i == 5 ? 100 * x : 1e-7f * x;
                    break;
                case 7:
                    out = std::fabs(x);
                    break;
                case 8:
                    out = -std::fabs(x);
                    break;
                case 9:  // ties: few values, half steps
                    out = std::trunc(x * 2) * 0.5f;
                    break;
                case 10:
                    out = x * 1e-16f;
                    break;
                case 11:
                    out = i % 3 ? 0.0f : x;
                    break;
                default:
                    out = 0.02f * x;
            }
        }
    return values;
}

std::vector<float> group_weights(testing::Random &random, size_t count) {
    std::vector<float> weights(count);
    for (size_t i = 0; i < count; ++i) weights[i] = i % 7 == 3 ? 0 : std::fabs(random.normal());
    return weights;
}

template <class T>
bool same_bits(const std::vector<T> &a, const std::vector<T> &b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// The weights that a single group's search gets for a weighting.
std::vector<float> explicit_weights(Weighting weighting, std::span<const float> x,
                                    std::span<const float> given) {
    std::vector<float> weights(given.begin(), given.end());
    float squares = 0;
    for (const float value : x) squares += value * value;
    const float rms = std::sqrt(squares / static_cast<float>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
        if (weighting == Weighting::Magnitude) weights[i] = std::fabs(x[i]);
        if (weighting == Weighting::RmsPlusMagnitude) weights[i] = rms + std::fabs(x[i]);
        if (weighting == Weighting::Square) weights[i] = x[i] * x[i];
    }
    return weights;
}

struct Case {
    std::vector<float> x, weights;
    size_t count, size;

    Case(testing::Random &random, size_t groups, size_t group_size)
        : x(group_values(random, groups, group_size)),
          weights(group_weights(random, groups * group_size)),
          count(groups),
          size(group_size) {}

    Groups groups(Weighting weighting) const {
        return {x.data(), weighting == Weighting::Given ? weights.data() : nullptr, weighting, count,
                static_cast<int>(size)};
    }
    std::span<const float> group(size_t g) const { return std::span(x).subspan(g * size, size); }
    std::vector<float> weights_of(size_t g, Weighting weighting) const {
        return explicit_weights(weighting, group(g), std::span(weights).subspan(g * size, size));
    }
};

template <class Level, class Many, class One>
void check_scales(const Case &data, Weighting weighting, Many many, One one) {
    std::vector<Level> expected(data.x.size());
    std::vector<float> expected_scales(data.count);
    for (size_t g = 0; g < data.count; ++g)
        expected_scales[g] =
            one(data.group(g), data.weights_of(g, weighting), expected.data() + g * data.size);
    for (const GroupSearch *search : searches()) {
        CAPTURE(search->name);
        std::vector<Level> levels(data.x.size());
        std::vector<float> scales(data.count);
        many(*search, data.groups(weighting), levels.data(), scales.data());
        CHECK(same_bits(levels, expected));
        CHECK(same_bits(scales, expected_scales));
    }
}

}  // namespace

TEST_CASE("group search: affine groups are those of the single search on every instruction set") {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
        CAPTURE(seed);
        testing::Random random(seed);
        const Case data(random, 1 + 23 * seed, seed % 2 ? 32 : 16);
        for (const Weighting weighting :
             {Weighting::Given, Weighting::Magnitude, Weighting::RmsPlusMagnitude})
            for (const int top : {3, 15, 31})
                for (const AffineCandidates candidates :
                     {AffineCandidates{-1.0f, 0.1f, 20}, AffineCandidates{-0.5f, 0.1f, 15, true},
                      AffineCandidates{-0.9f, 0.05f, 36}}) {
                    CAPTURE(static_cast<int>(weighting));
                    CAPTURE(top);
                    std::vector<uint8_t> expected(data.x.size());
                    std::vector<ScaleAndMinimum> expected_lines(data.count);
                    for (size_t g = 0; g < data.count; ++g)
                        expected_lines[g] = search_affine(data.group(g), top, data.weights_of(g, weighting),
                                                          candidates, expected.data() + g * data.size);
                    for (const GroupSearch *search : searches()) {
                        CAPTURE(search->name);
                        std::vector<uint8_t> levels(data.x.size());
                        std::vector<ScaleAndMinimum> lines(data.count);
                        search->affine(data.groups(weighting), top, candidates, levels.data(), lines.data());
                        CHECK(same_bits(levels, expected));
                        CHECK(same_bits(lines, expected_lines));
                    }
                }
    }
}

TEST_CASE("group search: symmetric, descending and positive groups are those of the single searches") {
    for (uint64_t seed = 11; seed <= 18; ++seed) {
        CAPTURE(seed);
        testing::Random random(seed);
        const Case data(random, 5 + 17 * (seed - 10), seed % 2 ? 32 : 16);
        for (const int top : {4, 8, 32}) {
            CAPTURE(top);
            for (const Weighting weighting : {Weighting::Given, Weighting::Square}) {
                CAPTURE(static_cast<int>(weighting));
                check_scales<int8_t>(
                    data, weighting,
                    [&](const GroupSearch &search, const Groups &groups, int8_t *levels, float *scales) {
                        search.symmetric(groups, top, levels, scales);
                    },
                    [&](std::span<const float> x, std::span<const float> weights, int8_t *levels) {
                        return search_symmetric(x, top, weights, levels);
                    });
            }
            check_scales<int8_t>(
                data, Weighting::Square,
                [&](const GroupSearch &search, const Groups &groups, int8_t *levels, float *scales) {
                    search.descend(groups, top, levels, scales);
                },
                [&](std::span<const float> x, std::span<const float>, int8_t *levels) {
                    return descend_symmetric(x, top, levels);
                });
        }
        for (const int top : {5, 15, 63})
            check_scales<uint8_t>(
                data, Weighting::Given,
                [&](const GroupSearch &search, const Groups &groups, uint8_t *levels, float *scales) {
                    search.positive(groups, top, levels, scales);
                },
                [&](std::span<const float> x, std::span<const float> weights, uint8_t *levels) {
                    return search_positive(x, top, weights, levels);
                });
    }
}

TEST_CASE("group search: rounding, weights and half floats are those of one value at a time") {
    testing::Random random(31);
    std::vector<uint16_t> halves(65536 + 5);
    for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
    const std::vector<float> x = group_values(random, 30, 32), importance = group_weights(random, x.size());
    for (const GroupSearch *search : searches()) {
        CAPTURE(search->name);
        for (const size_t count : {size_t{1}, size_t{7}, halves.size()}) {
            std::vector<float> floats(count), expected(count);
            search->from_f16(reinterpret_cast<const std::byte *>(halves.data()), floats.data(),
                             static_cast<int64_t>(count));
            for (size_t i = 0; i < count; ++i) expected[i] = f16_to_f32(halves[i]);
            CHECK(same_bits(floats, expected));
        }
        std::vector<float> weights(x.size()), expected_weights(x.size());
        search->weigh(x.data(), importance.data(), 0.3f, static_cast<int>(x.size()), weights.data());
        for (size_t i = 0; i < x.size(); ++i)
            expected_weights[i] = importance[i] * std::sqrt(0.3f + x[i] * x[i]);
        CHECK(same_bits(weights, expected_weights));
        for (const int count : {4, 16, 32, 960}) {
            std::vector<uint8_t> levels(static_cast<size_t>(count)), expected(levels.size());
            search->round(x.data(), count, {0.013f, 0.2f}, -4, 31, levels.data());
            for (size_t i = 0; i < levels.size(); ++i) {
                const int level = nearest_int((x[i] + 0.2f) / 0.013f);
                expected[i] = static_cast<uint8_t>((level < -4 ? -4 : level > 31 ? 31 : level) + 4);
            }
            CHECK(same_bits(levels, expected));
        }
    }
}
