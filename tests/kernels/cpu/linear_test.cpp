// y = W x in every format: the scalar code compared with a double-precision reference, and every instruction
// set with the scalar code, bit for bit.
#include "kernels/cpu/linear.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/linear_packed.h"
#include "tests/kernels/cpu/emulated_amx.h"
#include "tests/kernels/cpu/random_blocks.h"

using namespace runnel;
using namespace runnel::kernels::cpu;
using runnel::tests::Fill;
using runnel::tests::kLinearTypes;
using runnel::tests::random_weights;

namespace {

constexpr uint32_t kSeed = 20261121;

struct Free {
    void operator()(void *p) const { std::free(p); }
};
using Buffer = std::unique_ptr<std::byte, Free>;

// Exactly `bytes` bytes, so that the sanitizers find accesses beyond them.
Buffer aligned_buffer(size_t bytes) {
    return Buffer(static_cast<std::byte *>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)));
}

// Weights whose last byte is the last byte of an allocation: kernels must not read past a tensor.
std::unique_ptr<std::byte[]> exact_copy(const std::vector<std::byte> &bytes) {
    std::unique_ptr<std::byte[]> copy(new std::byte[bytes.size()]);
    std::copy(bytes.begin(), bytes.end(), copy.get());
    return copy;
}

std::vector<const LinearKernels *> vector_kernels() {
    std::vector<const LinearKernels *> found;
    for (const LinearKernels *k : {linear_avx2(), linear_avx512(), linear_amx()})
        if (k != nullptr) found.push_back(k);
    return found;
}

std::vector<const LinearKernels *> all_kernels() {
    std::vector<const LinearKernels *> found = vector_kernels();
    found.insert(found.begin(), &linear_scalar());
    return found;
}

std::string name_of(gguf::Type type) {
    return std::string(gguf::traits(type).name);
}

bool accepts(gguf::Type type, int64_t cols) {
    return cols % gguf::traits(type).block_size == 0;
}

std::vector<float> random_activations(int64_t count, std::mt19937 &random) {
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<size_t>(count));
    for (float &v : x) v = normal(random) * (random() % 100 == 0 ? 20.0f : 1.0f);
    return x;
}

// Packs and multiplies rows [row0, row1) of `weights`; returns [tokens][row1 - row0].
std::vector<float> run(const LinearKernels &kernels, gguf::Type type, const std::byte *weights, int64_t cols,
                       int64_t row0, int64_t row1, const float *x, int64_t x_stride, int32_t tokens) {
    const ActFormat format = act_format(type);
    const Buffer packed = aligned_buffer(packed_bytes(format, cols, tokens));
    kernels.pack(format, x, x_stride, cols, tokens, 0, tokens, 0, cols, packed.get());
    const Buffer scratch = aligned_buffer(kernels.scratch_bytes(cols));
    const int64_t rows = row1 - row0;
    std::vector<float> out(static_cast<size_t>(rows * tokens), -1.0f);
    // out is indexed by absolute row: shift it so that row0 is its first column.
    kernels.multiply(type, weights, cols, row0, row1, packed.get(), tokens, out.data() - row0, rows,
                     scratch.get(), nullptr);
    return out;
}

bool same_bits(const std::vector<float> &a, const std::vector<float> &b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The values of x in the activation format, in double precision, written independently of the kernels.
std::vector<double> kept(ActFormat format, const float *x, int64_t cols) {
    std::vector<double> result(x, x + cols);
    if (format == ActFormat::F32) return result;
    const int64_t group = format == ActFormat::Q8x32 ? 32 : 256;
    for (int64_t k0 = 0; k0 < cols; k0 += group) {
        float amax = 0;
        for (int64_t k = k0; k < k0 + group; ++k) amax = std::max(amax, std::abs(x[k]));
        float best_score = -1;
        for (float largest : {127.0f, 126.0f, 125.0f, 124.0f}) {
            float a[8] = {}, b[8] = {};
            for (int64_t k = k0; k < k0 + group; ++k) {
                const float q = std::nearbyint(x[k] * (largest / amax));
                a[k % 8] = std::fma(x[k] * (127.0f / amax), q, a[k % 8]);
                b[k % 8] = std::fma(q, q, b[k % 8]);
            }
            const auto fold = [](const float *p) {
                return ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]));
            };
            if (!(fold(a) * fold(a) / fold(b) > best_score)) continue;
            best_score = fold(a) * fold(a) / fold(b);
            for (int64_t k = k0; k < k0 + group; ++k)
                result[k] =
                    std::nearbyint(x[k] * (largest / amax)) * double(fold(a) / fold(b) * (amax / 127.0f));
        }
        if (amax == 0) std::fill_n(result.begin() + k0, group, 0.0);
    }
    return result;
}

}  // namespace

TEST_CASE("linear: the scalar code agrees with double precision") {
    std::mt19937 random(kSeed);
    for (gguf::Type type : kLinearTypes)
        for (int64_t cols : {1, 31, 32, 100, 256, 288, 384, 2304}) {
            if (!accepts(type, cols)) continue;
            CAPTURE(name_of(type));
            CAPTURE(cols);
            const int64_t rows = 5, tokens = 3;
            const std::vector<std::byte> weights = random_weights(type, rows, cols, random);
            const std::vector<float> x = random_activations(cols * tokens, random);
            const std::vector<float> y =
                run(linear_scalar(), type, weights.data(), cols, 0, rows, x.data(), cols, tokens);
            std::vector<float> row(static_cast<size_t>(cols));
            double worst = 0;
            for (int64_t r = 0; r < rows; ++r) {
                linear_scalar().dequantize(type, weights.data() + r * int64_t(gguf::row_bytes(type, cols)),
                                           cols, row.data());
                for (int64_t t = 0; t < tokens; ++t) {
                    const std::vector<double> a = kept(act_format(type), x.data() + t * cols, cols);
                    double expected = 0, magnitude = 0;
                    for (int64_t k = 0; k < cols; ++k) {
                        expected += row[k] * a[k];
                        magnitude += std::abs(row[k] * a[k]);
                    }
                    worst = std::max(worst, std::abs(y[t * rows + r] - expected) / (magnitude + 1e-30));
                }
            }
            CHECK(worst < 1e-6);
        }
}

TEST_CASE("linear: every instruction set dequantizes as the scalar code") {
    std::mt19937 random(kSeed + 1);
    for (const LinearKernels *kernels : vector_kernels())
        for (gguf::Type type : kLinearTypes)
            for (int64_t cols : {1, 7, 32, 96, 256, 384, 512, 800}) {
                if (!accepts(type, cols)) continue;
                CAPTURE(kernels->name);
                CAPTURE(name_of(type));
                CAPTURE(cols);
                const std::unique_ptr<std::byte[]> row = exact_copy(random_weights(type, 1, cols, random));
                std::vector<float> expected(static_cast<size_t>(cols)), got(static_cast<size_t>(cols));
                linear_scalar().dequantize(type, row.get(), cols, expected.data());
                kernels->dequantize(type, row.get(), cols, got.data());
                CHECK(same_bits(expected, got));
            }
}

TEST_CASE("linear: packing is the same everywhere, at once or in pieces") {
    std::mt19937 random(kSeed + 2);
    const int32_t tokens = 5;
    for (ActFormat format : {ActFormat::F32, ActFormat::Q8x32, ActFormat::Q8x256})
        for (int64_t cols : {33, 64, 256, 544, 768}) {
            if (format == ActFormat::Q8x32 && cols % 32 != 0) continue;
            if (format == ActFormat::Q8x256 && cols % 256 != 0) continue;
            const int64_t stride = cols + 3;
            std::vector<float> x = random_activations(stride * tokens, random);
            x[1] = std::numeric_limits<float>::infinity();
            x[static_cast<size_t>(stride + 2)] = std::numeric_limits<float>::quiet_NaN();
            for (int64_t k = 0; k < cols; ++k) x[2 * stride + k] *= 1e-37f;  // too small to be stored
            for (int64_t k = 0; k < cols; ++k) x[3 * stride + k] *= 1e36f;
            const size_t bytes = packed_bytes(format, cols, tokens);
            const Buffer expected = aligned_buffer(bytes), whole = aligned_buffer(bytes),
                         pieces = aligned_buffer(bytes);
            linear_scalar().pack(format, x.data(), stride, cols, tokens, 0, tokens, 0, cols, expected.get());
            for (const LinearKernels *kernels : all_kernels()) {
                CAPTURE(kernels->name);
                CAPTURE(int(format));
                CAPTURE(cols);
                kernels->pack(format, x.data(), stride, cols, tokens, 0, tokens, 0, cols, whole.get());
                CHECK(std::memcmp(expected.get(), whole.get(), bytes) == 0);
                for (int64_t col = 0; col < cols; col += 256)
                    for (int32_t t = tokens; t-- > 0;)
                        kernels->pack(format, x.data(), stride, cols, tokens, t, t + 1, col,
                                      std::min(col + 256, cols), pieces.get());
                CHECK(std::memcmp(expected.get(), pieces.get(), bytes) == 0);
            }
        }
}

TEST_CASE(
    "linear: packing has the scalar code's bits for outliers, equal magnitudes, few levels and groups of "
    "zeros") {
    std::mt19937 random(kSeed + 9);
    const int32_t tokens = 400;
    const int64_t cols = 768;
    std::vector<float> x(static_cast<size_t>(tokens * cols));
    for (size_t i = 0; i < x.size(); ++i) {
        float &v = x[i];
        const float value = std::normal_distribution<float>()(random);
        switch (i / 256 % 6) {
            case 0:  // levels that several candidates hit alike
                v = static_cast<float>(static_cast<int>(random() % 9) - 4);
                break;
            case 1:
                v = value < 0 ? -1.5f : 1.5f;
                break;
            case 2:
                v = random() % 64 == 0 ? 1000 * value : value;
                break;
            case 3:  // a group of zeros among others
                v = i / 32 % 3 == 0 ? (value < 0 ? -0.0f : 0.0f) : value;
                break;
            case 4:  // around the smallest magnitude that is stored
                v = value * 1e-30f;
                break;
            default:
                v = value * std::exp2(static_cast<float>(static_cast<int>(random() % 60) - 30));
        }
    }
    for (ActFormat format : {ActFormat::Q8x32, ActFormat::Q8x256}) {
        const size_t bytes = packed_bytes(format, cols, tokens);
        const Buffer expected = aligned_buffer(bytes), got = aligned_buffer(bytes);
        linear_scalar().pack(format, x.data(), cols, cols, tokens, 0, tokens, 0, cols, expected.get());
        for (const LinearKernels *kernels : all_kernels()) {
            CAPTURE(kernels->name);
            CAPTURE(int(format));
            kernels->pack(format, x.data(), cols, cols, tokens, 0, tokens, 0, cols, got.get());
            CHECK(std::memcmp(expected.get(), got.get(), bytes) == 0);
        }
    }
}

TEST_CASE("linear: every path is bit-equal to the scalar code") {
    std::mt19937 random(kSeed + 3);
    const int32_t most = 65;
    for (gguf::Type type : kLinearTypes)
        for (int64_t cols : {1, 13, 32, 64, 100, 256, 288, 384, 512, 1030, 1056, 2304}) {
            if (!accepts(type, cols)) continue;
            const int64_t rows = 39;
            const std::unique_ptr<std::byte[]> weights = exact_copy(random_weights(type, rows, cols, random));
            const std::vector<float> x = random_activations(cols * most, random);
            const std::vector<float> all =
                run(linear_scalar(), type, weights.get(), cols, 0, rows, x.data(), cols, most);
            for (const LinearKernels *kernels : vector_kernels())
                for (int32_t tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65})
                    for (auto [row0, row1] : {std::pair<int64_t, int64_t>{0, rows}, {3, 20}, {7, 8}}) {
                        CAPTURE(kernels->name);
                        CAPTURE(name_of(type));
                        CAPTURE(cols);
                        CAPTURE(tokens);
                        CAPTURE(row0);
                        const std::vector<float> got =
                            run(*kernels, type, weights.get(), cols, row0, row1, x.data(), cols, tokens);
                        int64_t wrong = 0;
                        for (int64_t t = 0; t < tokens; ++t)
                            for (int64_t r = row0; r < row1; ++r)
                                wrong += std::memcmp(&got[t * (row1 - row0) + r - row0], &all[t * rows + r],
                                                     4) != 0;
                        CHECK(wrong == 0);
                    }
        }
}

TEST_CASE(
    "linear: what is left of rows is bit-equal to the scalar code, whatever number of rows shares a vector") {
    std::mt19937 random(kSeed + 8);
    const int32_t most = 3;
    for (gguf::Type type : {gguf::Type::Q4_K, gguf::Type::Q5_K, gguf::Type::Q6_K})
        for (int64_t blocks = 1; blocks <= 17; ++blocks) {
            const int64_t cols = 256 * blocks, rows = 19;
            const std::unique_ptr<std::byte[]> weights = exact_copy(random_weights(type, rows, cols, random));
            const std::vector<float> x = random_activations(cols * most, random);
            for (int64_t row1 = 1; row1 <= rows; ++row1)
                for (int32_t tokens = 1; tokens <= most; ++tokens) {
                    const int64_t row0 = static_cast<int64_t>(random() % static_cast<uint64_t>(row1));
                    CAPTURE(name_of(type));
                    CAPTURE(blocks);
                    CAPTURE(row0);
                    CAPTURE(row1);
                    CAPTURE(tokens);
                    const auto product = [&](const LinearKernels &kernels) {
                        return run(kernels, type, weights.get(), cols, row0, row1, x.data(), cols, tokens);
                    };
                    const std::vector<float> expected = product(linear_scalar());
                    for (const LinearKernels *kernels : vector_kernels())
                        CHECK(same_bits(expected, product(*kernels)));
                }
        }
}

TEST_CASE("linear: many rows and columns are bit-equal to the scalar code") {
    std::mt19937 random(kSeed + 6);
    const int64_t rows = 110, cols = 8448;  // more than AMX's kernels unpack at once
    const int32_t tokens = 35;
    for (gguf::Type type : {gguf::Type::Q4_0, gguf::Type::Q4_K, gguf::Type::Q6_K}) {
        const std::vector<std::byte> weights = random_weights(type, rows, cols, random);
        const std::vector<float> x = random_activations(cols * tokens, random);
        const auto product = [&](const LinearKernels &kernels) {
            return run(kernels, type, weights.data(), cols, 0, rows, x.data(), cols, tokens);
        };
        const std::vector<float> expected = product(linear_scalar());
        for (const LinearKernels *kernels : vector_kernels()) {
            CAPTURE(kernels->name);
            CAPTURE(name_of(type));
            CHECK(same_bits(expected, product(*kernels)));
        }
    }
}

TEST_CASE("linear: AMX's kernels with emulated tiles are bit-equal to the scalar code") {
    using gguf::Type;
    const LinearKernels *emulated = runnel::tests::emulated_amx();
    if (emulated == nullptr) return;  // a CPU without AVX-512, where AMX is not either
    std::mt19937 random(kSeed + 7);
    for (Type type :
         {Type::Q4_0, Type::Q5_1, Type::NVFP4, Type::PTQ1_0, Type::Q2_K, Type::Q4_K, Type::Q6_K, Type::IQ1_S})
        for (int64_t cols : {64, 288, 512, 2304})
            for (auto [row0, row1] : {std::pair<int64_t, int64_t>{0, 20}, {2, 9}}) {
                if (!accepts(type, cols)) continue;
                const int32_t tokens = row0 == 0 ? 35 : 16;
                CAPTURE(name_of(type));
                CAPTURE(cols);
                CAPTURE(row0);
                const std::unique_ptr<std::byte[]> weights =
                    exact_copy(random_weights(type, row1, cols, random));
                const std::vector<float> x = random_activations(cols * tokens, random);
                const auto product = [&](const LinearKernels &kernels) {
                    return run(kernels, type, weights.get(), cols, row0, row1, x.data(), cols, tokens);
                };
                CHECK(same_bits(product(linear_scalar()), product(*emulated)));
            }
}

TEST_CASE("linear: extremes of the integer range give the scalar code's bits") {
    std::mt19937 random(kSeed + 4);
    const int64_t rows = 17, cols = 512;
    const int32_t most = 17;
    for (gguf::Type type : kLinearTypes)
        for (Fill fill : {Fill::Ones, Fill::Zeros})
            for (int pattern = 0; pattern < 3; ++pattern) {
                std::vector<float> x(static_cast<size_t>(cols * most));
                for (size_t i = 0; i < x.size(); ++i)
                    x[i] = pattern == 0 ? 3.0f : (pattern == 1 || i % 2 == 0) ? -3.0f : 3.0f;
                const std::vector<std::byte> weights = random_weights(type, rows, cols, random, fill);
                const std::vector<float> expected =
                    run(linear_scalar(), type, weights.data(), cols, 0, rows, x.data(), cols, most);
                for (const LinearKernels *kernels : vector_kernels())
                    for (int32_t tokens : {1, 3, 9, most}) {
                        CAPTURE(kernels->name);
                        CAPTURE(name_of(type));
                        CAPTURE(int(fill));
                        CAPTURE(pattern);
                        CAPTURE(tokens);
                        std::vector<float> first(expected.begin(), expected.begin() + tokens * rows);
                        CHECK(same_bits(first, run(*kernels, type, weights.data(), cols, 0, rows, x.data(),
                                                   cols, tokens)));
                    }
            }
}

// Eight blocks of a row are multiplied together, and what is left of a row separately.
TEST_CASE("linear: K types with every number of blocks in a row are bit-equal to the scalar code") {
    using gguf::Type;
    std::mt19937 random(kSeed + 8);
    const int64_t rows = 6;
    const int32_t most = 5;
    for (Type type : {Type::Q2_K, Type::Q3_K, Type::Q4_K, Type::Q5_K, Type::Q6_K})
        for (Fill fill : {Fill::Random, Fill::Ones, Fill::Zeros})
            for (int64_t blocks = 1; blocks <= 17; ++blocks) {
                const int64_t cols = 256 * blocks;
                std::vector<std::byte> bytes = random_weights(type, rows, cols, random, fill);
                // The first scale is the largest f16, the second a subnormal one.
                const size_t scale = static_cast<size_t>(runnel::tests::scale_offsets(type).first);
                bytes[scale] = std::byte{0xff}, bytes[scale + 1] = std::byte{0x7b};
                if (blocks > 1) {
                    const size_t second = gguf::traits(type).block_bytes + scale;
                    bytes[second] = std::byte{0x01}, bytes[second + 1] = std::byte{0x80};
                }
                const std::unique_ptr<std::byte[]> weights = exact_copy(bytes);
                std::vector<float> x = random_activations(cols * most, random);
                if (fill != Fill::Random)  // the largest sums
                    for (float &v : x) v = -3.0f;
                const std::vector<float> all =
                    run(linear_scalar(), type, weights.get(), cols, 0, rows, x.data(), cols, most);
                for (const LinearKernels *kernels : vector_kernels())
                    for (int32_t tokens = 1; tokens <= most; ++tokens)
                        for (auto [row0, row1] : {std::pair<int64_t, int64_t>{0, rows}, {1, 4}, {5, 6}}) {
                            CAPTURE(kernels->name);
                            CAPTURE(name_of(type));
                            CAPTURE(int(fill));
                            CAPTURE(blocks);
                            CAPTURE(tokens);
                            CAPTURE(row0);
                            const std::vector<float> got =
                                run(*kernels, type, weights.get(), cols, row0, row1, x.data(), cols, tokens);
                            int64_t wrong = 0;
                            for (int64_t t = 0; t < tokens; ++t)
                                wrong += std::memcmp(&got[t * (row1 - row0)], &all[t * rows + row0],
                                                     static_cast<size_t>(row1 - row0) * sizeof(float)) != 0;
                            CHECK(wrong == 0);
                        }
            }
}

TEST_CASE("linear: a token's result does not depend on its neighbors, broken ones included") {
    std::mt19937 random(kSeed + 5);
    const int64_t rows = 18, cols = 512;
    for (const LinearKernels *kernels : all_kernels())
        for (gguf::Type type : kLinearTypes)
            for (int32_t tokens : {2, 3, 4, 9, 20}) {
                CAPTURE(kernels->name);
                CAPTURE(name_of(type));
                CAPTURE(tokens);
                const std::vector<std::byte> weights = random_weights(type, rows, cols, random);
                std::vector<float> x = random_activations(cols * tokens, random);
                x[100] = std::numeric_limits<float>::quiet_NaN();
                if (tokens > 2)
                    x[static_cast<size_t>(2 * cols + 300)] = -std::numeric_limits<float>::infinity();
                const std::vector<float> y =
                    run(*kernels, type, weights.data(), cols, 0, rows, x.data(), cols, tokens);
                for (int32_t t = 0; t < tokens; ++t) {
                    const std::vector<float> alone =
                        run(*kernels, type, weights.data(), cols, 0, rows, x.data() + t * cols, cols, 1);
                    for (int64_t r = 0; r < rows; ++r) {
                        const float a = y[t * rows + r], b = alone[r];
                        if (t == 0)
                            CHECK((std::isnan(a) && std::isnan(b)));
                        else if (t == 2)
                            CHECK(!std::isfinite(a));
                        else
                            CHECK(std::memcmp(&a, &b, 4) == 0);
                    }
                }
            }
}
