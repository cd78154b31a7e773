#include "kernels/cuda/linear/quantize.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>
#include <vector>

#include "gguf/half.h"
#include "tests/simt/buffer.h"
#include "tests/simt/run_kernel.h"
#include "tests/simt/simt.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"
#include "tests/support/skip.h"

using namespace runnel;
using namespace runnel::kernels::cuda;

namespace {

struct Rows {
    int32_t width, rows;
    std::vector<float> x, weight;
};

Rows random_rows(testing::Random &random, int32_t width, int32_t rows) {
    Rows r{width, rows, {}, {}};
    for (int i = 0; i < width * rows; ++i) r.x.push_back(random.normal() * (i % 97 == 3 ? 30.0f : 1.0f));
    for (int i = 0; i < width; ++i) r.weight.push_back(0.5f + random.uniform());
    return r;
}

// The device's output as plain numbers.
struct Quantized {
    std::vector<float> codes;  // [row][k]
    std::vector<float> scales;
    std::vector<float> sums, sums16;         // as stored
    std::vector<float> halves, half_scales;  // [row][k], [row]
    std::vector<std::byte> bytes;
    std::vector<float> normed;
};

constexpr ActivationForms kBoth{true, true};

// Integers need widths that are multiples of 32.
Quantized run(const Rows &r, bool norm, float eps, ActivationForms forms = kBoth) {
    forms.integers = forms.integers && r.width % 32 == 0;
    Stream stream;
    const int32_t row_floats = (r.width + 3) / 4 * 4;
    std::vector<float> rows(static_cast<size_t>(row_floats * r.rows), NAN);  // with undefined padding
    for (int row = 0; row < r.rows; ++row)
        std::copy_n(r.x.begin() + row * r.width, r.width, rows.begin() + row * row_floats);
    const simt::Buffer<float> x(stream, rows, "x"), weight(stream, r.weight, "norm weight", Region::Weights);
    const auto bytes = static_cast<size_t>(activation_bytes(r.width, r.rows, forms));
    const simt::Buffer<std::byte> memory(stream, bytes, "activations");
    const simt::Buffer<float> normed(stream, rows.size(), "normed");
    // Bytes between the rows, which must not be written.
    stream.fill(memory.data(), 0, bytes);
    const Activations out = place_activations(memory.data(), r.width, r.rows, forms);
    simt::run_kernel(
        stream, quantize_kernel(), {static_cast<uint32_t>(r.rows), kQuantizeShared},
        {x.data(), norm ? weight.data() : nullptr, normed.data(), eps, r.width, row_floats, out});
    Quantized q;
    q.bytes = memory.read();
    const std::vector<float> written = normed.read();
    for (int row = 0; row < r.rows; ++row)
        q.normed.insert(q.normed.end(), written.begin() + row * row_floats,
                        written.begin() + row * row_floats + r.width);
    const Activations host = place_activations(q.bytes.data(), r.width, r.rows, forms);
    for (int row = 0; row < r.rows && forms.halves; ++row) {
        for (int k = 0; k < r.width; ++k)
            q.halves.push_back(gguf::f16_to_f32(host.halves[row * host.halves_stride + k / 32 * 32 +
                                                            k / 4 % 4 * 8 + k / 16 % 2 * 4 + k % 4]));
        q.half_scales.push_back(host.half_scales[row]);
    }
    for (int row = 0; row < r.rows && forms.integers; ++row) {
        for (int k = 0; k < r.width; ++k) {
            const auto place = std::find(kColumnOrder, kColumnOrder + 4, k % 4) - kColumnOrder;
            q.codes.push_back(gguf::f16_to_f32(
                host.codes[row * host.codes_stride + k / 32 * 32 + k / 4 % 4 * 8 + k / 16 % 2 * 4 + place]));
        }
        int other_digits = 0;
        for (int k = 0; k < r.width && row < kDigitRows; ++k) {
            const int8_t *high = host.digits + 2 * row * host.codes_stride + k / 32 * 64 + k / 4 % 4 * 8 +
                                 k / 16 % 2 * 4 + k % 4;
            const float code = q.codes[static_cast<size_t>(row * r.width + k)];
            other_digits += !std::isnan(code) && static_cast<float>(kDigit * high[0] + high[32]) != code;
        }
        CHECK(other_digits == 0);
        const auto copy = [row](std::vector<float> &to, const uint16_t *from, int64_t stride) {
            for (int64_t i = 0; i < stride; ++i) to.push_back(gguf::f16_to_f32(from[row * stride + i]));
        };
        const float *scales = host.scales + row * host.scales_stride;
        q.scales.insert(q.scales.end(), scales, scales + (r.width + 255) / 256);
        copy(q.sums, host.sums, host.sums_stride);
        copy(q.sums16, host.sums16, host.sums16_stride);
    }
    return q;
}

// Checks the sums of groups of `size` values, two numbers each, in every block of 256, whole or not.
void check_sums(const Rows &r, const Quantized &q, const std::vector<float> &sums, int size) {
    const int blocks = (r.width + 255) / 256, groups = 256 / size;
    REQUIRE(sums.size() == static_cast<size_t>(r.rows * blocks * 2 * groups));
    for (int row = 0; row < r.rows; ++row)
        for (int group = 0; group < blocks * groups; ++group) {
            float sum = 0;
            for (int k = group * size; k < (group + 1) * size && k < r.width; ++k)
                sum += q.codes[static_cast<size_t>(row * r.width + k)];
            const int at = (row * blocks + group / groups) * 2 * groups + group % groups;
            const float high = sums[static_cast<size_t>(at)], low = sums[static_cast<size_t>(at + groups)];
            REQUIRE(high + low == sum);
            REQUIRE(std::fmod(high, 32.0f) == 0);
            REQUIRE(std::fabs(low) <= 16);
        }
}

}  // namespace

TEST_CASE("cuda quantize: norm and 12-bit values match the double-precision reference") {
    testing::Random random(11);
    for (const int32_t width : {32, 64, 96, 256, 288, 896, 2048 + 32, 4096, 4096 + 32, 9216})
        for (const bool norm : {true, false}) {
            CAPTURE(width);
            CAPTURE(norm);
            const Rows r = random_rows(random, width, 1 + static_cast<int32_t>(random.below(3)));
            const Quantized q = run(r, norm, 1e-5f);
            for (int row = 0; row < r.rows; ++row) {
                const auto offset = static_cast<size_t>(row) * static_cast<size_t>(width);
                const reference::Row x = reference::to_row({r.x.data() + offset, static_cast<size_t>(width)});
                const reference::Row y = norm ? reference::rms_norm(x, reference::to_row(r.weight), 1e-5) : x;
                for (int k = 0; k < width; ++k) {
                    const size_t at = offset + static_cast<size_t>(k);
                    const double scale = q.scales[static_cast<size_t>(row * ((width + 255) / 256) + k / 256)];
                    const double code = static_cast<double>(q.codes[at]);
                    REQUIRE(code == std::rint(code));
                    REQUIRE(std::abs(code) <= 2047);
                    // Half a step, and the rounding of float32.
                    REQUIRE(std::abs(scale * code - y[static_cast<size_t>(k)]) <= scale * (0.5 + 1e-3));
                    REQUIRE(q.normed[at] == doctest::Approx(y[static_cast<size_t>(k)]).epsilon(1e-6));
                }
            }
            check_sums(r, q, q.sums, 32);
            check_sums(r, q, q.sums16, 16);
        }
}

TEST_CASE("cuda quantize: halves are the values to 11 bits, at any width") {
    testing::Random random(17);
    for (const int32_t width : {1, 30, 64, 100, 256, 1030, 5000})
        for (const bool norm : {true, false}) {
            CAPTURE(width);
            CAPTURE(norm);
            Rows r = random_rows(random, width, 1 + static_cast<int32_t>(random.below(3)));
            // Exponents for which the squares stay within float32.
            const int reach = norm ? 30 : 90;
            const float size = std::ldexp(1.0f, static_cast<int>(random.below(2 * reach)) - reach);
            for (float &v : r.x) v *= size;
            const Quantized q = run(r, norm, 0, {false, true});
            for (int row = 0; row < r.rows; ++row) {
                const auto offset = static_cast<size_t>(row) * static_cast<size_t>(width);
                const reference::Row x = reference::to_row({r.x.data() + offset, static_cast<size_t>(width)});
                const reference::Row y = norm ? reference::rms_norm(x, reference::to_row(r.weight), 0) : x;
                double largest = 0;
                for (const double v : y) largest = std::max(largest, std::abs(v));
                const double scale = q.half_scales[static_cast<size_t>(row)];
                CHECK(largest / scale >= 0x1p14 * (1 - 1e-6));
                CHECK(largest / scale <= 0x1p15 * (1 + 1e-6));
                for (size_t k = 0; k < y.size(); ++k) {
                    const double value = scale * static_cast<double>(q.halves[offset + k]);
                    // Half a unit in the last place, down to subnormals; plus the rounding of the norm.
                    REQUIRE(std::abs(value - y[k]) <= std::abs(y[k]) * (0x1p-11 + 1e-6) + scale * 0x1p-25);
                }
            }
        }
}

TEST_CASE("cuda quantize: a row's bits do not depend on the rows beside it or the order of threads") {
    testing::Random random(12);
    const Rows many = random_rows(random, 544, 5);
    const Quantized all = run(many, true, 1e-6f);
    simt::settings().seed = 99;
    for (int row = 0; row < many.rows; ++row) {
        Rows one = many;
        one.rows = 1;
        one.x.assign(many.x.begin() + row * 544, many.x.begin() + (row + 1) * 544);
        const Quantized q = run(one, true, 1e-6f);
        CHECK(std::memcmp(q.codes.data(), all.codes.data() + row * 544, 544 * sizeof(float)) == 0);
        CHECK(std::memcmp(q.scales.data(), all.scales.data() + row * 3, 12) == 0);
        CHECK(std::memcmp(q.halves.data(), all.halves.data() + row * 544, 544 * sizeof(float)) == 0);
        CHECK(q.half_scales[0] == all.half_scales[static_cast<size_t>(row)]);
    }
    simt::settings() = {};
}

TEST_CASE("cuda quantize: zeros and tiny values give zeros, NaN and infinity give NaN") {
    Rows r{512, 1, std::vector<float>(512, 0.0f), std::vector<float>(512, 1.0f)};
    r.x[300] = 1e-38f;  // the second group is practically zero
    Quantized q = run(r, false, 0);
    CHECK(q.scales[0] == 0.0f);
    CHECK(q.scales[1] == 0.0f);
    CHECK(q.codes[300] == 0);
    CHECK(q.half_scales[0] == 0.0f);
    CHECK(q.halves[300] == 0.0f);
    r.x[5] = std::numeric_limits<float>::quiet_NaN();
    r.x[6] = 1;
    q = run(r, false, 0);
    CHECK(std::isnan(q.scales[0]));
    CHECK(q.scales[1] == 0.0f);
    CHECK(std::isnan(q.half_scales[0]));
    r.x[5] = -std::numeric_limits<float>::infinity();
    q = run(r, false, 0);
    CHECK(std::isnan(q.half_scales[0]));
    CHECK(std::isnan(q.scales[0]));
    r.x[5] = 3.0e38f;  // the largest number beside the smallest
    q = run(r, false, 0);
    CHECK(q.halves[5] * 0x1p-14f * (q.half_scales[0] * 0x1p14f) == doctest::Approx(3.0e38f).epsilon(1e-3));
    CHECK(q.halves[300] == 0.0f);
}

TEST_CASE("cuda quantize: rows beyond those with digits overwrite nothing") {
    testing::Random random(14);
    constexpr int32_t kWidth = 96, kRows = static_cast<int32_t>(kDigitRows) + 3;
    const Rows r = random_rows(random, kWidth, kRows);
    const Quantized all = run(r, false, 0, {true, false});
    // What stands behind the digits, of every row.
    for (int32_t row = 0; row < kRows; ++row) {
        CAPTURE(row);
        const auto from = r.x.begin() + row * kWidth;
        const Quantized alone = run({kWidth, 1, {from, from + kWidth}, {}}, false, 0, {true, false});
        const auto is_part = [&](const std::vector<float> &one, const std::vector<float> &of) {
            REQUIRE(of.size() == kRows * one.size());
            return std::equal(one.begin(), one.end(),
                              of.begin() + row * static_cast<std::ptrdiff_t>(one.size()));
        };
        CHECK(is_part(alone.codes, all.codes));
        CHECK(is_part(alone.scales, all.scales));
        CHECK(is_part(alone.sums, all.sums));
        CHECK(is_part(alone.sums16, all.sums16));
    }
}

TEST_CASE("cuda quantize: memory traffic is as predicted") {
    if (!simt::emulated()) {
        runnel::testing::skip("only the emulator counts bytes");
        return;
    }
    testing::Random random(13);
    const Rows r = random_rows(random, 1024, 3);
    constexpr uint64_t kDigits = 1024 * 2,
                       kIntegers = 1024 * 2 + 1024 / 256 * 4 + 1024 / 32 * 4 + 1024 / 16 * 4 + kDigits,
                       kHalves = 1024 * 2 + 4;
    for (const auto &[forms, bytes] : {std::tuple{ActivationForms{true, false}, kIntegers},
                                       {ActivationForms{false, true}, kHalves},
                                       {kBoth, kIntegers + kHalves},
                                       {ActivationForms{}, uint64_t{0}}}) {
        CAPTURE(bytes);
        simt::take_reports();
        run(r, true, 1e-6f, forms);
        const auto reports = simt::take_reports();
        REQUIRE(reports.size() == 1);
        const auto &traffic = reports[0].traffic;
        CHECK(traffic.at("x").read == 3 * 1024 * 4);
        CHECK(traffic.at("norm weight").read == 3 * 1024 * 4);
        CHECK(traffic.at("normed").written == 3 * 1024 * 4);
        CHECK((traffic.contains("activations") ? traffic.at("activations").written : 0) == 3 * bytes);
    }
}
