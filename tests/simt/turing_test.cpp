// The replacements for instructions that sm_75 lacks (device_turing.h), in the emulator: products compared
// with plain sums over rows and columns, conversions with gguf/half.h.
#include "tests/simt/turing.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "gguf/half.h"
#include "kernels/cuda/runtime/device.h"
#include "kernels/cuda/runtime/runtime.h"
#include "tests/simt/buffer.h"
#include "tests/simt/small_kernels.h"

using namespace runnel;
namespace cuda = runnel::kernels::cuda;

namespace {

constexpr int kRows = 16, kColumns = 8;

// Converts [row][K] to the registers of a fragment, in the layout of the PTX manual: `per_lane` registers.
template <class T>
std::vector<uint32_t> fragment(const std::vector<T> &rows, int k_count, int per_lane) {
    constexpr int kPer = 4 / sizeof(T);
    std::vector<uint32_t> registers(static_cast<size_t>(32 * per_lane), 0);
    for (int i = 0; i < static_cast<int>(rows.size()); ++i) {
        const int row = i / k_count, k = i % k_count, half = k / (4 * kPer);
        const int lane = 4 * (row % 8) + k / kPer % 4;
        const int index = per_lane == 4 ? 2 * half + row / 8 : half;
        const auto bits =
            static_cast<uint32_t>(static_cast<std::make_unsigned_t<T>>(rows[static_cast<size_t>(i)]));
        registers[static_cast<size_t>(lane * per_lane + index)] |= bits << (k % kPer * (32 / kPer));
    }
    return registers;
}

// The index of an element of a 16 x 8 result in fragment order.
size_t place(int row, int column) {
    return static_cast<size_t>(4 * (4 * (row % 8) + column / 2) + 2 * (row / 8) + column % 2);
}

struct Results {
    std::vector<float> f16_k8, f16_k16, bf16_k16;
    std::vector<int32_t> s8_k16, s8_k32, u8_k32;
};

constexpr int32_t kBefore = 1000;  // added to the products

Results multiply(const std::vector<uint32_t> &a, const std::vector<uint32_t> &b) {
    cuda::Stream stream;
    const std::vector<float> floats(kRows * kColumns, kBefore);
    const simt::Buffer<uint32_t> left(stream, a, "a"), right(stream, b, "b");
    const simt::Buffer<float> k8(stream, floats, "f16 k8"), f16(stream, floats, "f16"),
        bf16(stream, floats, "bf16");
    const std::vector<int32_t> integers(kRows * kColumns, kBefore);
    const simt::Buffer<int32_t> k16(stream, integers, "s8 k16"), k32(stream, integers, "s8 k32"),
        u32(stream, integers, "u8 k32");
    cuda::launch(
        stream, simt::products_kernel(), {1},
        {left.data(), right.data(), k8.data(), f16.data(), bf16.data(), k16.data(), k32.data(), u32.data()});
    return {k8.read(), f16.read(), bf16.read(), k16.read(), k32.read(), u32.read()};
}

// Random 16-bit numbers of both signs, as bits and values.
struct Halves {
    std::vector<uint16_t> bits;
    std::vector<double> values;
};
template <class Round, class Widen>
Halves random_halves(int count, std::mt19937 &random, Round round, Widen widen) {
    std::normal_distribution<float> value(0, 1);
    Halves all;
    for (int i = 0; i < count; ++i) {
        all.bits.push_back(round(value(random)));
        all.values.push_back(static_cast<double>(widen(all.bits.back())));
    }
    return all;
}

template <class Round, class Widen>
void check_float_product(uint32_t seed, std::vector<float> Results::*result, Round round, Widen widen) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const Halves a = random_halves(kRows * 16, random, round, widen),
                 b = random_halves(kColumns * 16, random, round, widen);
    const std::vector<float> c = multiply(fragment(a.bits, 16, 4), fragment(b.bits, 16, 2)).*result;
    for (int row = 0; row < kRows; ++row)
        for (int column = 0; column < kColumns; ++column) {
            double sum = kBefore;
            for (int k = 0; k < 16; ++k)
                sum += a.values[static_cast<size_t>(16 * row + k)] *
                       b.values[static_cast<size_t>(16 * column + k)];
            // 16 sums of about 1000 in float32.
            CHECK(std::abs(static_cast<double>(c[place(row, column)]) - sum) < 16 * 6.2e-5);
        }
}

}  // namespace

TEST_CASE("simt: a wrong row of a fragment and operands in the wrong order change the product") {
    std::mt19937 random(31);
    const auto integers = [&](int count) {
        return random_halves(
            count, random, [&](float x) { return gguf::f32_to_f16(std::round(8 * x)); }, gguf::f16_to_f32);
    };
    const Halves a = integers(kRows * 16), b = integers(kColumns * 16);
    std::vector<float> expected(kRows * kColumns, kBefore);
    for (int row = 0; row < kRows; ++row)
        for (int column = 0; column < kColumns; ++column)
            for (int k = 0; k < 16; ++k)
                expected[place(row, column)] +=
                    static_cast<float>(a.values[static_cast<size_t>(16 * row + k)] *
                                       b.values[static_cast<size_t>(16 * column + k)]);
    using Registers = std::vector<uint32_t>;
    const Registers left = fragment(a.bits, 16, 4), right = fragment(b.bits, 16, 2);
    CHECK(multiply(left, right).f16_k16 == expected);
    const auto exchanged = [](Registers registers, size_t per_lane, size_t one, size_t other) {
        for (size_t lane = 0; lane < 32; ++lane)
            std::swap(registers[lane * per_lane + one], registers[lane * per_lane + other]);
        return registers;
    };
    CHECK(multiply(exchanged(left, 4, 0, 1), right).f16_k16 != expected);  // rows g and g + 8
    CHECK(multiply(exchanged(left, 4, 1, 2), right).f16_k16 != expected);  // rows and columns swapped
    CHECK(multiply(left, exchanged(right, 2, 0, 1)).f16_k16 != expected);  // the halves of k
    Registers shifted = left;  // every lane has the row of the next group
    std::rotate(shifted.begin(), shifted.begin() + 16, shifted.end());
    CHECK(multiply(shifted, right).f16_k16 != expected);
}

TEST_CASE("turing: sums of integers in binary16 are exact, as one mma or as several smaller ones") {
    for (const bool smaller : {false, true}) {
        std::optional<simt::Turing> turing;
        if (smaller) turing.emplace();
        for (uint32_t seed = 1; seed <= 3; ++seed) {
            CAPTURE(smaller);
            CAPTURE(seed);
            std::mt19937 random(seed);
            const auto integers = [&](int count, int largest) {
                std::uniform_int_distribution<int> any(-largest, largest);
                return random_halves(
                    count, random, [&](float) { return gguf::f32_to_f16(static_cast<float>(any(random))); },
                    gguf::f16_to_f32);
            };
            // Codes of 8 bits and activations of 12 (kernels/cuda/linear/activations.h).
            const Halves a = integers(kRows * 16, 128), b = integers(kColumns * 16, 2047);
            const Results c = multiply(fragment(a.bits, 16, 4), fragment(b.bits, 16, 2));
            for (int row = 0; row < kRows; ++row)
                for (int column = 0; column < kColumns; ++column) {
                    double sum = kBefore;
                    for (int k = 0; k < 16; ++k) {
                        if (k == 8) CHECK(static_cast<double>(c.f16_k8[place(row, column)]) == sum);
                        sum += a.values[static_cast<size_t>(16 * row + k)] *
                               b.values[static_cast<size_t>(16 * column + k)];
                    }
                    CHECK(static_cast<double>(c.f16_k16[place(row, column)]) == sum);
                }
        }
    }
}

TEST_CASE("turing: products of int8 are exact, as one mma or as several smaller ones") {
    for (const bool smaller : {false, true}) {
        std::optional<simt::Turing> turing;
        if (smaller) turing.emplace();
        for (const int depth : {16, 32})
            for (uint32_t seed = 1; seed <= 3; ++seed) {
                CAPTURE(smaller);
                CAPTURE(depth);
                CAPTURE(seed);
                std::mt19937 random(seed);
                std::uniform_int_distribution<int> any(-128, 127);
                const auto integers = [&](int count) {
                    std::vector<int8_t> all;
                    for (int i = 0; i < count; ++i) all.push_back(static_cast<int8_t>(any(random)));
                    return all;
                };
                const std::vector<int8_t> a = integers(kRows * depth), b = integers(kColumns * depth);
                const Results results = multiply(fragment(a, depth, 4), fragment(b, depth, 2));
                const std::vector<int32_t> &c = depth == 16 ? results.s8_k16 : results.s8_k32;
                for (int row = 0; row < kRows; ++row)
                    for (int column = 0; column < kColumns; ++column) {
                        int32_t sum = kBefore, unsigned_sum = kBefore;
                        for (int k = 0; k < depth; ++k) {
                            const int8_t left = a[static_cast<size_t>(depth * row + k)],
                                         right = b[static_cast<size_t>(depth * column + k)];
                            sum += left * right;
                            unsigned_sum += static_cast<uint8_t>(left) * right;
                        }
                        CHECK(c[place(row, column)] == sum);
                        if (depth == 32) CHECK(results.u8_k32[place(row, column)] == unsigned_sum);
                    }
            }
    }
}

TEST_CASE("turing: products of f16 from smaller ones, of bf16 from multiply-adds") {
    const simt::Turing turing;
    for (uint32_t seed = 11; seed <= 13; ++seed) {
        check_float_product(
            seed, &Results::f16_k16, [](float x) { return gguf::f32_to_f16(x); },
            [](uint16_t h) { return gguf::f16_to_f32(h); });
        check_float_product(
            seed, &Results::bf16_k16, [](float x) { return gguf::f32_to_bf16(x); },
            [](uint16_t h) { return gguf::bf16_to_f32(h); });
    }
}

TEST_CASE("turing: conversions round to nearest even") {
    namespace turing = cuda::turing;
    std::mt19937 random(21);
    int wrong = 0;
    for (int i = 0; i < 100000; ++i) {
        // Every second one is exactly at a rounding boundary.
        uint32_t bits = static_cast<uint32_t>(random());
        if (i % 2 == 0) bits = (bits & 0xffff0000u) | 0x8000u;
        const float x = std::bit_cast<float>(bits), y = std::bit_cast<float>(static_cast<uint32_t>(random()));
        if (std::isnan(x) || std::isnan(y)) continue;
        wrong += turing::f32_to_bf16(x) != gguf::f32_to_bf16(x);
        wrong += turing::pack_bf16(x, y) != (gguf::f32_to_bf16(x) | uint32_t{gguf::f32_to_bf16(y)} << 16);
        wrong += turing::pack_f16(x, y) != (gguf::f32_to_f16(x) | uint32_t{gguf::f32_to_f16(y)} << 16);
    }
    CHECK(wrong == 0);
    CHECK(turing::f32_to_bf16(std::bit_cast<float>(0xffc12345u)) == 0x7fff);
    CHECK(turing::f32_to_bf16(INFINITY) == 0x7f80);
}
