// The elementary functions of the kernels compared with the C library's in double precision.
#include "kernels/cuda/runtime/math.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tests/support/random.h"

using namespace runnel::kernels::cuda;

namespace {

double relative(float value, double exact) {
    return std::abs(static_cast<double>(value) - exact) / std::max(std::abs(exact), 1e-30);
}

}  // namespace

TEST_CASE("cuda math: exp2, exp, tanh and silu stay within the stated errors") {
    runnel::testing::Random random(7);
    double exp2_error = 0, exp_error = 0, tanh_error = 0, silu_error = 0, gelu_error = 0;
    for (int i = 0; i < 200000; ++i) {
        const float x = (random.uniform() - 0.5f) * 240.0f, small = x / 60.0f, y = x / 1.5f;
        if (x > -126.0f) exp2_error = std::max(exp2_error, relative(exp2_p(x), std::exp2(double{x})));
        exp_error = std::max(exp_error, relative(exp_p(y), std::exp(double{y})));
        tanh_error = std::max(tanh_error, relative(tanh_p(small), std::tanh(double{small})));
        silu_error = std::max(silu_error, relative(silu_p(y), double{y} / (1 + std::exp(-double{y}))));
    }
    for (int i = -9000; i < 9000; ++i) {
        const float x = (static_cast<float>(i) + 0.5f) / 1000;
        gelu_error = std::max(gelu_error, std::abs(double{gelu_erf_p(x)} / double{x} -
                                                   0.5 * (1 + std::erf(double{x} * std::sqrt(0.5)))));
    }
    CHECK(gelu_error < 3e-7);
    CHECK(exp2_error < 2 * 0x1p-23);
    CHECK(exp_error < 2 * 0x1p-23);
    CHECK(tanh_error < 4e-7);
    CHECK(silu_error < 4 * 0x1p-23);
}

TEST_CASE("cuda math: reciprocal and soft-cap stay within the stated errors") {
    runnel::testing::Random random(9);
    double reciprocal_error = 0, cap_error = 0;
    for (int i = 0; i < 200000; ++i) {
        const float x = exp2_p((random.uniform() - 0.5f) * 200.0f), s = random.normal() * 60.0f;
        reciprocal_error = std::max(reciprocal_error, relative(reciprocal_p(x), 1 / double{x}));
        cap_error = std::max(
            cap_error, std::abs(double{soft_cap_p(s, 50.0f, 1.0f / 50.0f)} - 50 * std::tanh(double{s} / 50)));
    }
    CHECK(reciprocal_error < 2 * 0x1p-23);
    CHECK(cap_error < 3e-7 * 50);
    CHECK(std::isnan(soft_cap_p(NAN, 50.0f, 0.02f)));
}

TEST_CASE("cuda math: results are right at the ends of the ranges") {
    CHECK(exp2_p(0.0f) == 1.0f);
    CHECK(exp2_p(-1.0f) == 0.5f);
    CHECK(exp2_p(127.0f) == 0x1p127f);
    CHECK(exp2_p(-126.0f) == 0x1p-126f);
    CHECK(exp2_p(-1e30f) == 0.0f);
    CHECK(std::isfinite(exp2_p(1e30f)));
    CHECK(std::isnan(exp2_p(NAN)));
    CHECK(exp_p(0.0f) == 1.0f);
    CHECK(exp_p(-INFINITY) == 0.0f);
    CHECK(std::isfinite(exp_p(INFINITY)));
    CHECK(std::isnan(exp_p(NAN)));
    CHECK(tanh_p(0.0f) == 0.0f);
    CHECK(tanh_p(50.0f) == 1.0f);
    CHECK(tanh_p(-50.0f) == -1.0f);
    CHECK(std::isnan(tanh_p(NAN)));
}

TEST_CASE("cuda math: sin and cos are right in every quadrant") {
    runnel::testing::Random random(8);
    double error = 0;
    for (int i = 0; i < 200000; ++i) {
        const auto turn = static_cast<uint32_t>(random.bits());
        const double angle = static_cast<double>(turn) * 0x1p-32 * 2 * std::numbers::pi;
        const SinCos both = sincos_p(turn);
        error = std::max({error, std::abs(double{both.sin} - std::sin(angle)),
                          std::abs(double{both.cos} - std::cos(angle))});
    }
    CHECK(error < 1e-7);
    CHECK(sincos_p(0).cos == 1.0f);
    CHECK(sincos_p(0).sin == 0.0f);
    CHECK(sincos_p(1u << 30).sin == 1.0f);
    CHECK(sincos_p(1u << 31).cos == -1.0f);
    CHECK(sincos_p(3u << 30).sin == -1.0f);
}
