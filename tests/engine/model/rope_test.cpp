#include "engine/model/rope.h"

#include <doctest/doctest.h>

#include <cmath>
#include <initializer_list>

using namespace runnel::model;
using runnel::kernels::RopeTable;

namespace {

// Expected values: the published reference implementation of YaRN (find_correction_range and
// linear_ramp_mask of the paper's code), evaluated in double.
struct Expected {
    size_t pair;
    double frequency;
};

void check(const RopeTable &table, std::initializer_list<Expected> expected) {
    for (const Expected &e : expected) {
        CAPTURE(e.pair);
        CHECK(table.inv_freq[e.pair] == doctest::Approx(e.frequency).epsilon(1e-9));
    }
}

}  // namespace

TEST_CASE("rope: plain and linearly scaled frequencies follow the formulas") {
    const RopeTable plain = make_rope(RopeTable::Pairs::Adjacent, 64, 10000, {}, {});
    REQUIRE(plain.inv_freq.size() == 32);
    CHECK(plain.magnitude == 1.0f);
    check(plain, {{0, 1.0}, {8, 0.1}, {16, 0.01}, {24, 0.001}});
    const RopeTable linear =
        make_rope(RopeTable::Pairs::Halves, 64, 10000, {.kind = RopeScaling::Kind::Linear, .factor = 4}, {});
    CHECK(linear.pairs == RopeTable::Pairs::Halves);
    check(linear, {{0, 0.25}, {8, 0.025}, {16, 0.0025}});
    CHECK(linear.magnitude == 1.0f);
}

TEST_CASE("rope: YaRN keeps fast pairs, slows the others and scales the magnitude") {
    RopeScaling scaling{.kind = RopeScaling::Kind::Yarn, .factor = 4, .original_context = 2048};
    const RopeTable a = make_rope(RopeTable::Pairs::Adjacent, 64, 10000, scaling, {});
    check(a, {{0, 1.0},
              {5, 0.237137370566},
              {10, 0.0497455787668},
              {12, 0.0243252127705},
              {15, 0.00794983930713},
              {20, 0.000973008510821},
              {25, 0.000187473552333},
              {31, 3.33380358041e-05}});
    CHECK(a.magnitude == doctest::Approx(1.138629436111989).epsilon(1e-7));

    scaling.original_context = 32768;
    const RopeTable b = make_rope(RopeTable::Pairs::Halves, 128, 1e6, scaling, {});
    check(b, {{0, 1.0},
              {20, 0.0133352143216},
              {30, 0.00106436098125},
              {40, 4.4456985251e-05},
              {50, 5.13381256614e-06},
              {63, 3.10234440188e-07}});
}

TEST_CASE("rope: the magnitude is 1 if the log multiplier is 1; the attention factor multiplies it") {
    RopeScaling scaling{
        .kind = RopeScaling::Kind::Yarn, .factor = 8, .original_context = 4096, .log_multiplier = 1};
    CHECK(make_rope(RopeTable::Pairs::Adjacent, 64, 10000, scaling, {}).magnitude == 1.0f);
    scaling.attention_factor = 0.5;
    CHECK(make_rope(RopeTable::Pairs::Adjacent, 64, 10000, scaling, {}).magnitude == 0.5f);
}

TEST_CASE("rope: the factors of rope_freqs divide the frequency of each pair (Llama 3.1)") {
    const std::vector<float> divisors = {1, 2, 4, 8};
    const RopeTable table = make_rope(RopeTable::Pairs::Adjacent, 8, 500000, {}, divisors);
    for (size_t j = 0; j < 4; ++j)
        CHECK(table.inv_freq[j] == doctest::Approx(std::pow(500000.0, -2.0 * double(j) / 8) / divisors[j]));
}
