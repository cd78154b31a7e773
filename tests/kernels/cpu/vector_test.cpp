#include "kernels/cpu/vector.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cpu/vector_lanes_scalar.h"
#include "tests/support/reference.h"

using namespace runnel;
using namespace runnel::kernels;
using namespace runnel::kernels::cpu;

namespace {

using Floats = std::vector<float>;

std::vector<const VectorKernels *> all_kernels() {
    std::vector<const VectorKernels *> kernels{&vector_scalar()};
    if (vector_avx2() != nullptr) kernels.push_back(vector_avx2());
    if (vector_avx512() != nullptr) kernels.push_back(vector_avx512());
    return kernels;
}

class Random {
  public:
    explicit Random(uint32_t seed) : engine_(seed) {}
    Floats normal(size_t n, float scale = 1) {
        std::normal_distribution<float> distribution(0, scale);
        Floats out(n);
        for (float &x : out) x = distribution(engine_);
        return out;
    }
    int64_t between(int64_t low, int64_t high) {
        return std::uniform_int_distribution<int64_t>(low, high)(engine_);
    }
    uint32_t bits() { return static_cast<uint32_t>(engine_()); }

  private:
    std::mt19937 engine_;
};

bool same_bits(const Floats &a, const Floats &b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Lengths around every vector width, and some of real models.
const std::vector<int64_t> kLengths{1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 100, 255, 288, 2048, 2053};

// Distance in units of the last place of the float nearest to `exact`.
double ulps(float x, double exact) {
    const float nearest = std::fabs(static_cast<float>(exact));
    return std::fabs(x - exact) / (std::nextafter(nearest, std::numeric_limits<float>::infinity()) - nearest);
}

}  // namespace

TEST_CASE("norms agree with double precision and between instruction sets") {
    Random random(1);
    for (const int64_t n : kLengths) {
        for (int round = 0; round < 16; ++round) {
            const bool rms = round % 2 == 0;
            const float magnitude = std::vector<float>{1e-4f, 1.0f, 300.0f}[static_cast<size_t>(round) % 3];
            CAPTURE(n);
            CAPTURE(round);
            const auto size = static_cast<size_t>(n);
            Floats x = random.normal(size, magnitude);
            for (float &value : x) value += magnitude;
            const Floats w = random.normal(size), bias = random.normal(size), add = random.normal(size);
            const VectorKernels::NormVectors with{round & 2 ? w.data() : nullptr,
                                                  round & 4 ? bias.data() : nullptr,
                                                  round & 8 ? add.data() : nullptr};
            auto expected = (rms ? reference::rms_norm : reference::layer_norm)(
                reference::to_row(x), with.weight ? reference::to_row(w) : reference::Row{}, 1e-5f);
            for (size_t i = 0; i < size; ++i)
                expected[i] += (with.bias ? double{bias[i]} : 0) + (with.add ? double{add[i]} : 0);
            const auto norm = [&](const VectorKernels &kernels, const float *in, float *out) {
                (rms ? kernels.rms_norm : kernels.layer_norm)(in, with, n, 1e-5f, out);
            };
            Floats scalar(size);
            norm(vector_scalar(), x.data(), scalar.data());
            for (size_t i = 0; i < size; ++i)
                CHECK(scalar[i] == doctest::Approx(expected[i]).epsilon(4e-6).scale(1));
            for (const VectorKernels *kernels : all_kernels()) {
                CAPTURE(kernels->name);
                Floats in_place = x;
                norm(*kernels, in_place.data(), in_place.data());
                CHECK(same_bits(in_place, scalar));
            }
        }
    }
}

TEST_CASE("norms sum in the documented order") {
    Random random(10);
    for (const int64_t n : kLengths) {
        CAPTURE(n);
        const Floats x = random.normal(static_cast<size_t>(n)), w = random.normal(static_cast<size_t>(n));
        const auto fold = [](const float *s) {
            return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
        };
        float sums[8] = {};
        for (size_t k = 0; k < x.size(); ++k) sums[k % 8] += x[k];
        for (const float mean : {0.0f, fold(sums) / static_cast<float>(n)}) {
            float s[8] = {};
            for (size_t k = 0; k < x.size(); ++k) s[k % 8] = std::fma(x[k] - mean, x[k] - mean, s[k % 8]);
            const float scale = 1.0f / std::sqrt(fold(s) / static_cast<float>(n) + 1e-6f);
            Floats expected(x.size()), out(x.size());
            for (size_t k = 0; k < x.size(); ++k) expected[k] = ((x[k] - mean) * scale) * w[k];
            const auto norm = mean == 0 ? vector_scalar().rms_norm : vector_scalar().layer_norm;
            norm(x.data(), {w.data(), nullptr, nullptr}, n, 1e-6f, out.data());
            CHECK(same_bits(out, expected));
        }
    }
}

TEST_CASE("exp is within 1.25 ulp, exact at 0 and saturates") {
    Random random(2);
    Floats x{0.0f, -0.0f, -87.3f, 88.37f, 1.0f, -1.0f};
    for (int i = 0; i < 400000; ++i) x.push_back(static_cast<float>(random.between(-873000, 883000)) * 1e-4f);
    for (int i = 0; i < 100000; ++i)
        x.push_back(static_cast<float>(random.between(-1000000, 1000000)) * 1e-6f);
    Floats scalar(x.size());
    vector_scalar().exp(x.data(), static_cast<int64_t>(x.size()), scalar.data());
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, ulps(scalar[i], std::exp(double{x[i]})));
    MESSAGE("exp: at most " << worst << " ulp");
    CHECK(worst <= 1.25);
    CHECK(scalar[0] == 1.0f);
    CHECK(scalar[1] == 1.0f);
    const float inf = std::numeric_limits<float>::infinity();
    for (const VectorKernels *kernels : all_kernels()) {
        CAPTURE(kernels->name);
        Floats out(x.size());
        kernels->exp(x.data(), static_cast<int64_t>(x.size()), out.data());
        CHECK(same_bits(out, scalar));
        const Floats edges{-inf, -1e30f, -100, 100, inf, NAN};
        Floats limits(edges.size());
        kernels->exp(edges.data(), static_cast<int64_t>(edges.size()), limits.data());
        for (size_t i = 0; i < 3; ++i) CHECK((limits[i] > 0 && limits[i] < 1.3e-38f));
        for (size_t i = 3; i < 5; ++i) CHECK((limits[i] > 2e38f && limits[i] < inf));
        CHECK(std::isnan(limits[5]));
    }
}

TEST_CASE("gates agree with double precision and between instruction sets") {
    constexpr Activation::Parameters kNumbers{0.8f, -0.9f, 0.5f, -1e-6f};
    Random random(3);
    for (const Activation::Kind act :
         {Activation::Kind::Silu, Activation::Kind::GeluTanh, Activation::Kind::GeluErf,
          Activation::Kind::ReluSquared, Activation::Kind::SiluClamped, Activation::Kind::Sigmoid,
          Activation::Kind::Identity, Activation::Kind::Relu, Activation::Kind::Clamp,
          Activation::Kind::XIelu, Activation::Kind::SiluThenLimit, Activation::Kind::LimitThenSilu,
          Activation::Kind::Tanh, Activation::Kind::SignedRoot})
        for (const int64_t n : kLengths)
            for (const bool has_up : {true, false}) {
                if (!is_linear_in_up(act) && !has_up) continue;
                CAPTURE(n);
                CAPTURE(has_up);
                CAPTURE(static_cast<int>(act));
                const Floats gate = random.normal(static_cast<size_t>(n), 8),
                             up = random.normal(static_cast<size_t>(n), 5);
                const float *factors = has_up ? up.data() : nullptr;
                const auto expected =
                    reference::gate(act, reference::to_row(gate),
                                    has_up ? reference::to_row(up) : reference::Row{}, kNumbers);
                Floats scalar(gate.size());
                vector_scalar().gate(act, kNumbers, gate.data(), factors, n, scalar.data());
                for (size_t i = 0; i < gate.size(); ++i)
                    CHECK(scalar[i] == doctest::Approx(expected[i]).epsilon(8e-6).scale(1));
                for (const VectorKernels *kernels : all_kernels()) {
                    CAPTURE(kernels->name);
                    Floats out = gate;
                    kernels->gate(act, kNumbers, out.data(), factors, n, out.data());
                    CHECK(same_bits(out, scalar));
                }
            }
}

TEST_CASE("interpolations agree with double precision and between instruction sets") {
    Random random(4);
    for (const int64_t n : kLengths)
        for (int absent = 0; absent < 4; ++absent) {  // nothing, `from`, `to`, or b
            CAPTURE(n);
            CAPTURE(absent);
            const auto count = static_cast<size_t>(n);
            const Floats from = random.normal(count, 3), to = random.normal(count, 3),
                         a = random.normal(count, 1), b = random.normal(count, 1);
            const auto unless = [&](int which, const float *x) { return absent == which ? nullptr : x; };
            Floats scalar(count);
            vector_scalar().lerp(unless(1, from.data()), unless(2, to.data()), a.data(), unless(3, b.data()),
                                 n, scalar.data());
            for (size_t i = 0; i < count; ++i) {
                const double x = absent == 1 ? 0 : double{from[i]}, y = absent == 2 ? 0 : double{to[i]},
                             c = double{a[i]} + (absent == 3 ? 0 : double{b[i]});
                CHECK(scalar[i] == doctest::Approx(x + c * (y - x)).epsilon(1e-6).scale(10));
            }
            for (const VectorKernels *kernels : all_kernels()) {
                CAPTURE(kernels->name);
                Floats out = to;
                kernels->lerp(unless(1, from.data()), unless(2, out.data()), a.data(), unless(3, b.data()), n,
                              out.data());
                CHECK(same_bits(out, scalar));
            }
        }
}

TEST_CASE("gates saturate, and NaN stays") {
    const Floats extreme{-1e30f, -200, -90, 0, 90, 200, 1e30f, NAN}, ones(8, 1.0f);
    for (const VectorKernels *kernels : all_kernels()) {
        CAPTURE(kernels->name);
        Floats out(8);
        for (const Activation::Kind act :
             {Activation::Kind::Silu, Activation::Kind::GeluTanh, Activation::Kind::GeluErf}) {
            CAPTURE(static_cast<int>(act));
            kernels->gate(act, {}, extreme.data(), ones.data(), 8, out.data());
            CHECK(std::fabs(out[1]) < 1e-30f);
            CHECK(out[3] == 0);
            CHECK(out[4] == 90);
            CHECK(std::isnan(out[7]));
        }
        kernels->gate(Activation::Kind::ReluSquared, {}, extreme.data(), nullptr, 8, out.data());
        CHECK(out[1] == 0);
        CHECK(out[4] == 8100);
        CHECK(std::isnan(out[7]));
        kernels->gate(Activation::Kind::SiluClamped, {}, extreme.data(), extreme.data(), 8, out.data());
        CHECK(out[5] == doctest::Approx(56));
        CHECK(std::isnan(out[7]));
        for (const auto kind : {Activation::Kind::SiluThenLimit, Activation::Kind::LimitThenSilu}) {
            kernels->gate(kind, {7.0f}, extreme.data(), extreme.data(), 8, out.data());
            CHECK(out[5] == doctest::Approx(49).epsilon(0.01));
            CHECK(std::isnan(out[7]));
        }
        kernels->gate(Activation::Kind::Relu, {}, extreme.data(), nullptr, 8, out.data());
        CHECK(out[0] == 0);
        CHECK(out[6] == 1e30f);
        CHECK(std::isnan(out[7]));
        kernels->gate(Activation::Kind::Tanh, {}, extreme.data(), nullptr, 8, out.data());
        CHECK(out[0] == -1);
        CHECK(out[3] == 0);
        CHECK(out[6] == 1);
        CHECK(std::isnan(out[7]));
        constexpr Activation::Parameters kNumbers{0.8f, -0.9f, 0.5f, -1e-6f};
        const auto &clamp = extreme;
        kernels->gate(Activation::Kind::Clamp, kNumbers, clamp.data(), nullptr, 8, out.data());
        const auto limits =
            reference::gate(Activation::Kind::Clamp, reference::to_row(extreme), {}, kNumbers);
        for (const size_t i : {0, 1, 3, 5, 6}) CHECK(out[i] == doctest::Approx(limits[i]));
        CHECK(std::isnan(out[7]));
        kernels->gate(Activation::Kind::XIelu, kNumbers, extreme.data(), nullptr, 8, out.data());
        const auto curve = reference::gate(Activation::Kind::XIelu, reference::to_row(extreme), {}, kNumbers);
        for (const size_t i : {1, 2, 3, 4, 5}) CHECK(out[i] == doctest::Approx(curve[i]));
        CHECK(std::isnan(out[7]));
    }
}

TEST_CASE("soft-cap agrees with double precision and between instruction sets") {
    Random random(12);
    for (const float c : {0.5f, 30.0f, 50.0f}) {
        Floats x = random.normal(1003, c), scalar(1003), out(1003);
        x[0] = 1e30f, x[1] = -1e30f, x[2] = 0;
        vector_scalar().softcap(c, x.data(), 1003, scalar.data());
        for (size_t i = 0; i < x.size(); ++i)
            CHECK(std::fabs(double{scalar[i]} - reference::softcap(double{x[i]}, double{c})) <
                  3e-7 * double{c});
        CHECK(scalar[0] == c);
        CHECK(scalar[1] == -c);
        CHECK(scalar[2] == 0);
        for (const VectorKernels *kernels : all_kernels()) {
            kernels->softcap(c, x.data(), 1003, out.data());
            CHECK(same_bits(out, scalar));
        }
    }
}

TEST_CASE("RoPE: both pair orders, partial rotation and odd sizes are computed") {
    Random random(4);
    for (int round = 0; round < 60; ++round) {
        const int32_t heads = static_cast<int32_t>(random.between(1, 5));
        const int32_t head_dim = static_cast<int32_t>(random.between(2, 130));
        RopeTable table;
        table.pairs = round % 2 == 0 ? RopeTable::Pairs::Adjacent : RopeTable::Pairs::Halves;
        table.magnitude = round % 3 == 0 ? 1.0f : 1.25f;
        table.inv_freq.resize(static_cast<size_t>(random.between(1, head_dim / 2)));
        const double n_rot = 2.0 * static_cast<double>(table.inv_freq.size());
        for (size_t j = 0; j < table.inv_freq.size(); ++j)
            table.inv_freq[j] = std::pow(10000.0, -2.0 * static_cast<double>(j) / n_rot);
        const int32_t position = static_cast<int32_t>(random.between(0, 100000));
        CAPTURE(round);
        CAPTURE(head_dim);
        CAPTURE(n_rot);

        const size_t half = table.inv_freq.size();
        Floats cos(half), sin(half);
        rope_row(table, position, cos.data(), sin.data());
        const Floats x = random.normal(static_cast<size_t>(heads * head_dim));
        auto expected = reference::to_row(x);
        for (int32_t h = 0; h < heads; ++h)
            reference::rope(
                std::span(expected).subspan(static_cast<size_t>(h * head_dim), static_cast<size_t>(head_dim)),
                table, position);
        Floats scalar = x;
        vector_scalar().rope(scalar.data(), heads, head_dim, cos.data(), sin.data(),
                             static_cast<int32_t>(half), table.pairs);
        for (size_t i = 0; i < x.size(); ++i)
            CHECK(scalar[i] == doctest::Approx(expected[i]).epsilon(1e-6).scale(1.0));
        for (const VectorKernels *kernels : all_kernels()) {
            CAPTURE(kernels->name);
            Floats out = x;
            kernels->rope(out.data(), heads, head_dim, cos.data(), sin.data(), static_cast<int32_t>(half),
                          table.pairs);
            CHECK(same_bits(out, scalar));
        }
    }
}

TEST_CASE("the scalar fused multiply-add rounds once") {
    Random random(9);
    const auto any = [&](uint32_t mask = ~0u, uint32_t set = 0) {
        const uint32_t bits = (random.bits() & mask) | set;
        float x;
        std::memcpy(&x, &bits, sizeof x);
        return x;
    };
    const auto near_one = [&](uint32_t mantissa) { return any(0x80000000u | mantissa, 0x3f800000u); };
    int differences = 0;
    const auto check = [&](float a, float b, float c) {
        const float ours = fused(a, b, c), exact = std::fma(a, b, c);
        differences += !(std::isnan(exact) ? std::isnan(ours) : std::memcmp(&ours, &exact, sizeof ours) == 0);
    };
    for (int i = 0; i < 300000; ++i) {
        check(any(), any(), any());
        // Few mantissa bits (ties), sums of any distance, products that the sum nearly
        // cancels, subnormal results.
        const float a = near_one(0x7fffff), b = near_one(i % 2 == 0 ? 0x7fffff : 0x7ff000);
        const int shift = static_cast<int>(random.between(-60, 60));
        check(a, b, std::ldexp(near_one(0x7ff000), shift));
        check(a, b, std::ldexp(1.0f, shift));
        check(a, b, -(a * b));
        check(a, b, std::nextafter(-(a * b), near_one(0)));
        check(std::ldexp(a, -70), std::ldexp(b, -70),
              std::ldexp(near_one(0x7fffff), static_cast<int>(random.between(-149, -130))));
        check(std::ldexp(a, 70), std::ldexp(b, static_cast<int>(random.between(50, 60))), any());
    }
    CHECK(differences == 0);
}

TEST_CASE("add and scale") {
    Random random(5);
    for (const int64_t n : kLengths) {
        const Floats a = random.normal(static_cast<size_t>(n)), b = random.normal(static_cast<size_t>(n));
        for (const VectorKernels *kernels : all_kernels()) {
            CAPTURE(n);
            CAPTURE(kernels->name);
            Floats sum = b, product = a;
            kernels->add(a.data(), sum.data(), n, sum.data());
            kernels->scale(0.3f, product.data(), n, product.data());
            for (size_t i = 0; i < a.size(); ++i) {
                CHECK(sum[i] == a[i] + b[i]);
                CHECK(product[i] == 0.3f * a[i]);
            }
        }
    }
}

TEST_CASE("binary16: every half converts back to itself, every float rounds the same way") {
    std::vector<uint16_t> halves(65536);
    std::iota(halves.begin(), halves.end(), uint16_t{0});
    Random random(6);
    Floats floats{65504.0f, 65519.9f,     65520.0f, 1e10f,    -1e10f,
                  0x1p-14f, 0x1.ffcp-15f, 0x1p-24f, 0x1p-25f, 0x1.8p-25f};
    for (int i = 0; i < 300000; ++i) {
        const uint32_t bits = random.bits();
        float x;
        std::memcpy(&x, &bits, sizeof x);
        floats.push_back(x);
    }
    for (int i = 0; i < 100000; ++i)
        floats.push_back(std::ldexp(static_cast<float>(random.between(-9999, 9999)), -20));
    std::vector<uint16_t> scalar(floats.size());
    vector_scalar().to_half(floats.data(), static_cast<int64_t>(floats.size()), scalar.data());
    CHECK(scalar[0] == 0x7bff);
    CHECK(scalar[1] == 0x7bff);
    CHECK(scalar[2] == 0x7c00);
    CHECK(scalar[5] == 0x0400);
    CHECK(scalar[7] == 0x0001);
    CHECK(scalar[8] == 0x0000);
    CHECK(scalar[9] == 0x0001);
    for (const VectorKernels *kernels : all_kernels()) {
        CAPTURE(kernels->name);
        std::vector<uint16_t> out(floats.size()), back(halves.size());
        kernels->to_half(floats.data(), static_cast<int64_t>(floats.size()), out.data());
        CHECK(out == scalar);
        Floats values(halves.size());
        kernels->from_half(halves.data(), static_cast<int64_t>(halves.size()), values.data());
        kernels->to_half(values.data(), static_cast<int64_t>(values.size()), back.data());
        int differences = 0;
        for (size_t i = 0; i < halves.size(); ++i) {
            const bool nan = (i & 0x7fff) > 0x7c00;
            const double exponent = static_cast<double>(i >> 10 & 31),
                         fraction = static_cast<double>(i & 1023);
            const double magnitude = exponent == 0 ? std::ldexp(fraction, -24)
                                     : exponent == 31
                                         ? std::numeric_limits<double>::infinity()
                                         : std::ldexp(1024 + fraction, static_cast<int>(exponent) - 25);
            const bool value_right =
                nan ? std::isnan(values[i]) : values[i] == (i & 0x8000 ? -magnitude : magnitude);
            differences += !value_right || back[i] != (nan ? halves[i] | 0x200 : halves[i]);
        }
        CHECK(differences == 0);
        for (const int64_t n : {1, 5, 8, 13, 16, 21}) {  // tails
            std::vector<uint16_t> tail(static_cast<size_t>(n) + 1, 0x1234);
            kernels->to_half(floats.data() + 20, n, tail.data());
            CHECK(std::memcmp(tail.data(), scalar.data() + 20, static_cast<size_t>(n) * 2) == 0);
            CHECK(tail.back() == 0x1234);
        }
    }
}

TEST_CASE("argmax finds the first of the largest") {
    Random random(7);
    const float inf = std::numeric_limits<float>::infinity();
    for (const VectorKernels *kernels : all_kernels()) {
        CAPTURE(kernels->name);
        for (const int64_t n : kLengths) {
            CAPTURE(n);
            for (int round = 0; round < 10; ++round) {
                Floats x = random.normal(static_cast<size_t>(n));
                const int64_t first = random.between(0, n - 1), second = random.between(first, n - 1);
                x[static_cast<size_t>(first)] = x[static_cast<size_t>(second)] = 50;
                CHECK(kernels->argmax(x.data(), n) == first);
                if (first > 0) x[static_cast<size_t>(first) - 1] = NAN;
                CHECK(kernels->argmax(x.data(), n) == first);
                for (float &value : x) value = -std::fabs(value) - 1e3f;
                x[static_cast<size_t>(first)] = -1;
                CHECK(kernels->argmax(x.data(), n) == first);
            }
            CHECK(kernels->argmax(Floats(static_cast<size_t>(n), NAN).data(), n) == 0);
            CHECK(kernels->argmax(Floats(static_cast<size_t>(n), -inf).data(), n) == 0);
        }
    }
}
