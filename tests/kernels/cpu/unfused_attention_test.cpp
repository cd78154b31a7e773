#include "kernels/cpu/unfused_attention.h"

#include <doctest/doctest.h>

#include "tests/kernels/cpu/attention_sequence.h"

using namespace runnel::kernels;
using namespace runnel::kernels::cpu;
using namespace runnel::testing;

namespace {

std::vector<const UnfusedKernels *> all_unfused() {
    std::vector<const UnfusedKernels *> kernels{&kUnfusedScalar};
    if (attention_avx2() != nullptr) kernels.push_back(&kUnfusedAvx2);
    if (attention_avx512() != nullptr) kernels.push_back(&kUnfusedAvx512);
    return kernels;
}

// `probabilities` becomes the matrix after the softmax.
Floats unfused(const UnfusedKernels &kernels, const Sequence &sequence, int32_t cell, int32_t tokens,
               Floats &probabilities) {
    Floats out(sequence.rows_size(tokens), NAN);
    const AttentionTile tile = sequence.tile(cell, tokens, out.data());
    const int64_t stride = (cell + tokens + 31) / 32 * 32;
    probabilities.assign(static_cast<size_t>(stride * tokens * tile.heads), NAN);
    kernels.scores(tile, probabilities.data(), stride, scratch_for(tile).get());
    kernels.softmax(tile, probabilities.data(), stride);
    kernels.values(tile, probabilities.data(), stride, scratch_for(tile).get());
    return out;
}

}  // namespace

TEST_CASE("unfused attention: equal to double precision and to the fused kernels within rounding") {
    const uint32_t seed = 11;
    CAPTURE(seed);
    Engine engine(seed);
    for (int round = 0; round < 40; ++round) {
        const int32_t tokens = round % 3 == 0 ? 1 : pick(engine, 1, 40);
        const int32_t past = round % 4 == 0 ? 0 : pick(engine, 0, 700);
        const bool values_are_keys = round % 7 == 3;
        const int32_t dim = std::vector<int32_t>{1, 16, 33, 64, 80, 128}[static_cast<size_t>(round) % 6];
        const Shape shape{.cells = past + tokens,
                          .heads = std::vector<int32_t>{1, 3, 4, 8, 12}[static_cast<size_t>(round) % 5],
                          .head_dim_k = dim,
                          .head_dim_v = values_are_keys  ? std::max(1, dim - 16)
                                        : round % 4 == 1 ? 48
                                                         : dim,
                          .window = round % 2 == 0 ? 0 : pick(engine, 1, past + tokens),
                          .chunked = round % 6 == 1,
                          .values_are_keys = values_are_keys};
        CAPTURE(round);
        Sequence sequence(engine, shape);
        sequence.append_all(attention_best(), engine);
        const Floats fused = attend(attention_best(), sequence, past, tokens);
        for (const UnfusedKernels *kernels : all_unfused()) {
            Floats matrix;
            const Floats out = unfused(*kernels, sequence, past, tokens, matrix);
            CHECK(error_against_reference(sequence, past, tokens, out) < 1e-5);
            double worst = 0;
            for (size_t i = 0; i < out.size(); ++i)
                worst = std::max(worst, std::fabs(double(out[i]) - double(fused[i])));
            CHECK(worst < 1e-5);
            // The matrix holds the probabilities of the cells that a row sees.
            const AttentionTile tile = sequence.tile(past, tokens, nullptr);
            const size_t stride = matrix.size() / static_cast<size_t>(tokens * tile.heads);
            double off = 0;
            for (int32_t row = 0; row < tokens * tile.heads; ++row) {
                const int32_t own = past + row / tile.heads;
                double sum = 0;
                for (int32_t cell = first_visible(tile, own); cell <= own; ++cell)
                    sum += matrix[static_cast<size_t>(row) * stride + static_cast<size_t>(cell)];
                off = std::max(off, std::fabs(sum - 1));
            }
            CHECK(off < 1e-5);
        }
    }
}
