// Matrix kernels that quantize their output for the next launch write the same bytes as a separate launch.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tests/kernels/cuda/linear/linear_support.h"
#include "tests/simt/run_kernel.h"
#include "tests/simt/simt.h"

using namespace runnel;
using namespace runnel::kernels::cuda;
using namespace runnel::tests::device;

namespace {

// The output of a launch, with buffers for its prepared and normalized rows: one set written by the launch
// itself, one by a separate launch.
struct Prepared {
    Prepared(Stream &stream, int64_t rows, int tokens, ActivationForms which)
        : forms(which),
          out(upload(stream, std::vector<float>(static_cast<size_t>(rows * tokens), NAN), "out")),
          packed(upload(stream, zeros(rows, tokens), "prepared")),
          normed(upload(stream, std::vector<float>(static_cast<size_t>(rows * tokens), NAN), "normed")),
          arrivals(upload(stream,
                          std::vector<uint32_t>(static_cast<size_t>(tokens * col_blocks(rows) + 3), 0),
                          "arrivals")) {}

    std::vector<unsigned char> zeros(int64_t rows, int tokens) const {
        return std::vector<unsigned char>(static_cast<size_t>(activation_bytes(rows, tokens, forms) + 16), 0);
    }
    QuantizeParams params(int64_t rows, int tokens, const DeviceMemory *weight) const {
        return {out.as<const float>(),
                weight ? weight->as<const float>() : nullptr,
                weight ? normed.as<float>() : nullptr,
                1e-5f,
                static_cast<int32_t>(rows),
                rows,
                place_activations(packed.data(), rows, tokens, forms)};
    }
    template <class T>
    static std::vector<T> read(Stream &stream, const DeviceMemory &memory) {
        std::vector<T> values(memory.size() / sizeof(T));
        stream.copy_to_host(values.data(), memory.data(), memory.size());
        stream.wait();
        return values;
    }

    ActivationForms forms;
    DeviceMemory out, packed, normed, arrivals;
};

}  // namespace

TEST_CASE("cuda prepare: outputs are quantized like by a separate launch") {
    Stream stream;
    std::mt19937 random(61);
    struct Case {
        gguf::Type type;
        int64_t rows, cols;
        int tokens;
        ActivationForms forms;
        bool norm, gate;
    };
    // Quantizing groups of 256 columns works with any number of tokens; quantizing whole rows (for a norm or half
    // floats) with one token only.
    for (const Case &c : {Case{gguf::Type::Q4_K, 608, 2048, 1, {true, false}, false, true},
                          {gguf::Type::Q8_0, 800, 512, 3, {true, false}, false, false},
                          {gguf::Type::Q6_K, 256, 256, 8, {true, false}, false, true},
                          {gguf::Type::F16, 352, 512, 6, {true, false}, false, false},
                          {gguf::Type::Q4_0, 608, 256, 1, {true, false}, true, false},
                          {gguf::Type::BF16, 340, 2048, 1, {false, true}, true, false},
                          {gguf::Type::Q5_K, 608, 512, 1, {true, true}, false, true},
                          {gguf::Type::F32, 96, 96, 1, {}, true, false},
                          {gguf::Type::IQ3_S, 288, 512, 2, {true, false}, false, false}}) {
        CAPTURE(gguf::traits(c.type).name);
        const Matrix matrix(stream, c.type, c.rows, c.cols, random),
            up(stream, c.type, c.rows, c.cols, random);
        const Input input(stream, random_activations(c.tokens * c.cols, random), c.cols, c.tokens);
        const DeviceMemory weight =
            upload(stream, random_activations(c.rows, random), "norm", Region::Weights);
        const DeviceMemory *norm = c.norm ? &weight : nullptr;
        const TileFormat format = tile_format(c.type);
        LinearParams p = params_for(input, c.tokens);
        p.matrices = c.gate ? 2 : 1;
        p.gate = c.gate ? LinearGate::Silu : LinearGate::None;
        p.matrix[0].tiles = matrix.tiles.data(), p.matrix[1].tiles = up.tiles.data();
        p.matrix[0].rows = p.matrix[1].rows = static_cast<int32_t>(c.rows);
        p.matrix[0].out_stride = c.rows;

        LinearVersion version{.tokens = c.tokens, .staged = can_stage(format, {c.tokens})};
        if (c.norm || c.forms.halves) version.staged = version.staged && is_half(format);
        const Prepared after(stream, c.rows, c.tokens, c.forms);
        p.matrix[0].out = after.out.as<float>();
        simt::run_kernel(stream, linear_kernel(format, version), {3, linear_shared(format, version, p)}, p);
        simt::run_kernel(stream, quantize_kernel(), {static_cast<uint32_t>(c.tokens), kQuantizeShared},
                         after.params(c.rows, c.tokens, norm));
        const auto expected = Prepared::read<unsigned char>(stream, after.packed);

        const Prepared fused(stream, c.rows, c.tokens, c.forms);
        p.matrix[0].out = fused.out.as<float>();
        p.prepare = fused.params(c.rows, c.tokens, norm);
        p.arrivals = fused.arrivals.as<uint32_t>();
        for (const uint32_t grid : {1u, 2u, 5u, 64u}) {
            CAPTURE(grid);
            simt::settings().seed = grid;
            stream.fill(fused.packed.data(), 0, fused.packed.size());
            simt::run_kernel(stream, linear_kernel(format, version),
                             {grid, linear_shared(format, version, p)}, p);
            CHECK(Prepared::read<unsigned char>(stream, fused.packed) == expected);
            CHECK(different(download(stream, fused.out), download(stream, after.out)) == 0);
            if (c.norm) CHECK(different(download(stream, fused.normed), download(stream, after.normed)) == 0);
            for (const uint32_t left : Prepared::read<uint32_t>(stream, fused.arrivals)) CHECK(left == 0);
        }
        simt::settings() = {};
    }
}

TEST_CASE("cuda prepare: outputs of experts are quantized, group by group, like by a separate launch") {
    const uint32_t seed = 67;
    CAPTURE(seed);
    Stream stream;
    std::mt19937 random(seed);
    struct Case {
        gguf::Type type;
        int64_t rows, cols;
        int experts, tokens, most;  // most: rows of a group
    };
    for (const Case &c : {Case{gguf::Type::Q4_K, 768, 2048, 5, 12, kSmallGroupTokens},
                          {gguf::Type::Q8_0, 288, 512, 9, 7, kLinearGroupTokens},
                          {gguf::Type::F16, 544, 256, 3, 16, kLinearGroupTokens},
                          {gguf::Type::IQ3_S, 256, 256, 2, 3, kSmallGroupTokens},
                          {gguf::Type::F32, 96, 64, 4, 9, kLinearGroupTokens}}) {
        CAPTURE(gguf::traits(c.type).name);
        const Matrix gate(stream, c.type, c.experts * c.rows, c.cols, random),
            up(stream, c.type, c.experts * c.rows, c.cols, random);
        const Input input(stream, random_activations(c.tokens * c.cols, random), c.cols, c.tokens);
        std::vector<TokenGroup> list;  // of random experts and sizes
        for (int first = 0; first < c.tokens;) {
            const int left = c.tokens - first,
                      count = std::min(left, 1 + static_cast<int>(random() % static_cast<uint32_t>(c.most)));
            list.push_back({static_cast<int32_t>(random() % static_cast<uint32_t>(c.experts)), first, count});
            first += count;
        }
        const DeviceMemory groups = upload(stream, list, "groups"),
                           group_count = upload(
                               stream, std::vector<int32_t>{static_cast<int32_t>(list.size())}, "count");
        const TileFormat format = tile_format(c.type);
        LinearParams p = params_for(input, c.most);
        p.groups = groups.as<const TokenGroup>();
        p.group_count = group_count.as<const int32_t>();
        p.x_rows = c.tokens;
        p.matrices = 2;
        p.gate = LinearGate::Silu;
        p.matrix[0].tiles = gate.tiles.data(), p.matrix[1].tiles = up.tiles.data();
        p.matrix[0].rows = p.matrix[1].rows = static_cast<int32_t>(c.rows);
        p.matrix[0].out_stride = c.rows;
        constexpr ActivationForms kIntegers = {true, false};
        for (const bool staged : {false, true}) {
            if (staged && !can_stage(format, {c.most, true})) continue;
            CAPTURE(staged);
            const LinearVersion version{c.most, true, staged};
            p.tokens = c.tokens;
            const size_t shared = linear_shared(format, version, p);
            const Prepared after(stream, c.rows, c.tokens, kIntegers);
            p.prepare = {}, p.matrix[0].out = after.out.as<float>();
            simt::run_kernel(stream, linear_kernel(format, version), {3, shared}, p);
            simt::run_kernel(stream, quantize_kernel(), {static_cast<uint32_t>(c.tokens), kQuantizeShared},
                             after.params(c.rows, c.tokens, nullptr));
            const auto expected = Prepared::read<unsigned char>(stream, after.packed);

            const Prepared fused(stream, c.rows, c.tokens, kIntegers);
            p.matrix[0].out = fused.out.as<float>();
            p.prepare = fused.params(c.rows, c.tokens, nullptr);
            p.arrivals = fused.arrivals.as<uint32_t>();
            for (const uint32_t grid : {1u, 2u, 5u, 64u}) {
                CAPTURE(grid);
                simt::settings().seed = grid;
                stream.fill(fused.packed.data(), 0, fused.packed.size());
                simt::run_kernel(stream, linear_kernel(format, version), {grid, shared}, p);
                CHECK(Prepared::read<unsigned char>(stream, fused.packed) == expected);
                CHECK(different(download(stream, fused.out), download(stream, after.out)) == 0);
                for (const uint32_t left : Prepared::read<uint32_t>(stream, fused.arrivals)) CHECK(left == 0);
            }
            simt::settings() = {};
        }
    }
}
