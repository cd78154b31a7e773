// Matrices and activations on the emulated device, for the tests of the matrix kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "gguf/quantize.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/quantize.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/upload/repack_kernel.h"
#include "tests/kernels/cpu/random_blocks.h"
#include "tests/kernels/cuda/linear/canonical_linear.h"

namespace runnel::tests::device {

using namespace kernels::cuda;

template <class T>
DeviceMemory upload(Stream &stream, const std::vector<T> &values, const char *name,
                    Region region = Region::Data) {
    DeviceMemory memory(std::max<size_t>(values.size() * sizeof(T), 16), name);
    name_region(memory.data(), memory.size(), name, region);
    if (!values.empty()) stream.copy_to_device(memory.data(), values.data(), values.size() * sizeof(T));
    stream.wait();  // the values may be freed after this call
    return memory;
}

inline std::vector<float> download(Stream &stream, const DeviceMemory &memory) {
    std::vector<float> values(memory.size() / sizeof(float));
    stream.copy_to_host(values.data(), memory.data(), memory.size());
    stream.wait();
    return values;
}

inline std::vector<float> random_activations(int64_t count, std::mt19937 &random) {
    std::normal_distribution<float> value(0, 1);
    std::vector<float> x(static_cast<size_t>(count));
    for (float &v : x) v = random() % 64 == 0 ? 30 * value(random) : value(random);
    return x;
}

// A matrix: in the layout of the file, and as tiles that the repack kernel made.
struct Matrix {
    Matrix(Stream &stream, gguf::Type t, int64_t row_count, int64_t col_count, std::mt19937 &random,
           Fill fill = Fill::Random)
        : type(t),
          rows(row_count),
          cols(col_count),
          raw(random_weights(t, row_count, col_count, random, fill)),
          tiles(static_cast<size_t>(tiled_bytes(tile_format(t), row_count, col_count)), "weights") {
        name_region(tiles.data(), tiles.size(), "weights", Region::Weights);
        const DeviceMemory staging = upload(stream, raw, "staging"),
                           exponents(static_cast<size_t>(rows), "exponents");
        RawRows from{type, staging.as<const uint8_t>(), static_cast<int64_t>(gguf::row_bytes(type, cols)),
                     rows, cols};
        if (type == gguf::Type::BF16) {
            launch(stream, row_exponents_kernel(), {2}, {from, exponents.as<uint8_t>()});
            from.exponents = exponents.as<const uint8_t>();
        }
        launch(stream, repack_kernel(), {2}, {from, tiles.as<uint32_t>()});
        stream.wait();
    }
    std::span<const std::byte> row(int64_t r) const {
        const size_t bytes = gguf::row_bytes(type, cols);
        return std::span(raw).subspan(static_cast<size_t>(r) * bytes, bytes);
    }
    gguf::Type type;
    int64_t rows, cols;
    std::vector<std::byte> raw;
    DeviceMemory tiles;
};

// Activations on the device, plain and quantized.
struct Input {
    Input(Stream &stream, std::vector<float> values, int64_t width, int token_count)
        : x(std::move(values)),
          cols(width),
          stride((width + 3) / 4 * 4),
          tokens(token_count),
          forms{width % 32 == 0, true},
          packed(static_cast<size_t>(activation_bytes(width, token_count, forms)), "activations") {
        std::vector<float> padded(static_cast<size_t>(stride * tokens));
        for (int t = 0; t < tokens; ++t) std::copy_n(x.data() + t * cols, cols, padded.data() + t * stride);
        plain = upload(stream, padded, "x");
        quantized = place_activations(packed.data(), width, tokens, forms);
        launch(stream, quantize_kernel(), {static_cast<uint32_t>(tokens), kQuantizeShared},
               {plain.as<const float>(), nullptr, nullptr, 0, static_cast<int32_t>(cols), stride, quantized});
        stream.wait();
    }
    std::span<const float> row(int t) const {
        return std::span(x).subspan(static_cast<size_t>(t * cols), static_cast<size_t>(cols));
    }
    std::vector<float> x;
    int64_t cols, stride;
    int tokens;
    ActivationForms forms;
    DeviceMemory plain, packed;
    Activations quantized;
};

inline LinearParams params_for(const Input &input, int tokens) {
    LinearParams p = linear_params(input.cols);
    p.x = input.quantized;
    p.x_f32 = input.plain.as<const float>();
    p.x_stride = input.stride;
    p.tokens = tokens;
    return p;
}

inline std::vector<float> canonical(const Matrix &matrix, const Input &input, int tokens) {
    std::vector<float> y;
    for (int t = 0; t < tokens; ++t)
        for (int64_t r = 0; r < matrix.rows; ++r)
            y.push_back(canonical_dot(matrix.type, matrix.row(r), input.row(t)));
    return y;
}

inline size_t different(const std::vector<float> &a, const std::vector<float> &b) {
    if (a.size() != b.size()) return std::max(a.size(), b.size());
    size_t count = 0;
    for (size_t i = 0; i < a.size(); ++i)
        count += std::memcmp(&a[i], &b[i], sizeof(float)) != 0 && a[i] != b[i];
    return count;
}

inline std::vector<int64_t> widths(gguf::Type type) {
    if (gguf::traits(type).block_size == 256) return {256, 1280};
    if (gguf::traits(type).block_size == 128) return {128, 384, 640, 1152};
    if (gguf::traits(type).block_size == 64) return {64, 192, 640, 1152};
    if (gguf::traits(type).quantized) return {32, 96, 608, 1152};
    return {64, 300, 1184};
}

}  // namespace runnel::tests::device
