// The kernels of sparse attention: attention to chosen cells, the scores of an indexer, and its choice.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/indexer_runner.h"
#include "kernels/reference/operations.h"
#include "tests/kernels/chosen_blocks.h"
#include "tests/kernels/cpu/attention_sequence.h"

using namespace runnel;
using namespace runnel::kernels;
using namespace runnel::kernels::cpu;
using namespace runnel::testing;

namespace {

// Shapes of attention with all that may come together with chosen cells.
Shape any_shape(Engine &engine, int round, int32_t cells) {
    static const std::vector<int32_t> dims{1, 16, 33, 64, 80, 128}, heads{1, 2, 3, 5, 8, 16, 40};
    const int32_t dim = dims[static_cast<size_t>(pick(engine, 0, 5))];
    const bool values_are_keys = round % 3 == 1;
    return {cells,
            heads[static_cast<size_t>(round) % heads.size()],
            dim,
            values_are_keys ? std::max(1, dim - 16) : dim,
            0,
            false,
            round % 5 == 1 ? 3.0f : 0,
            round % 4 == 1,
            values_are_keys,
            CacheType::F16,
            CacheType::F16,
            0,
            round % 5 == 2};
}

Floats index_scores(const AttentionKernels &kernels, IndexTile tile) {
    const int32_t cells = tile.end_page * kBlockTokens;
    Floats out(static_cast<size_t>(tile.tokens * (tile.weights ? 1 : tile.heads) * cells), NAN);
    tile.scores = out.data(), tile.scores_stride = cells;
    const size_t bytes = index_scratch(tile.pages.head_dim_k) * sizeof(float);
    const std::unique_ptr<float, Free> scratch(
        static_cast<float *>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)));
    kernels.index_scores(tile, scratch.get());
    return out;
}

}  // namespace

TEST_CASE("attention: chosen cells: random shapes agree with double precision and the definition") {
    Engine engine(31);
    for (int round = 0; round < 60; ++round) {
        const int32_t tokens = round % 3 == 0 ? 1 : pick(engine, 1, 30);
        const int32_t past = round % 4 == 0 ? pick(engine, 900, 1400) : pick(engine, 0, 200);
        Sequence sequence(engine, any_shape(engine, round, past + tokens), kHalfNan, 2);
        const int32_t block = std::vector{1, 1, 16, 1, 48, 32, 1, 600}[static_cast<size_t>(round) % 8],
                      most = (past + tokens - 1) / block + 1;
        sequence.choose(engine, round % 2 == 0 ? pick(engine, 1, std::min(most, 12)) : pick(engine, 1, most),
                        block);
        sequence.append_all(attention_best(), engine);
        CAPTURE(round);
        CAPTURE(tokens);
        CAPTURE(past);
        CAPTURE(sequence.chosen_count);
        CAPTURE(block);
        const Floats scalar = attend(attention_scalar(), sequence, past, tokens);
        // Biases by the distance of far cells are large, and rounded to float.
        CHECK(error_against_reference(sequence, past, tokens, scalar) <
              (sequence.shape.slopes ? 5e-5 : 5e-6));
        CHECK(same_bits(scalar, attend_by_definition(sequence, past, tokens)));
        for (const AttentionKernels *kernels : all_kernels()) {
            CAPTURE(kernels->name);
            CHECK(same_bits(attend(*kernels, sequence, past, tokens), scalar));
            CHECK(same_bits(attend_in_ranges(*kernels, sequence, past, tokens), scalar));
            CHECK(same_bits(attend_one_by_one(*kernels, sequence, past, tokens), scalar));
        }
    }
}

TEST_CASE("attention: a row that chooses all its cells has the bits of a row without a choice") {
    Engine engine(32);
    for (int round = 0; round < 30; ++round) {
        CAPTURE(round);
        const int32_t tokens = pick(engine, 1, 30), past = pick(engine, 0, round % 3 == 0 ? 1200 : 90);
        Sequence sequence(engine, any_shape(engine, round, past + tokens), kHalfNan, 2);
        sequence.append_all(attention_best(), engine);
        for (const AttentionKernels *kernels : all_kernels()) {
            CAPTURE(kernels->name);
            sequence.chosen_count = 0, sequence.chosen.clear();
            const Floats dense = attend(*kernels, sequence, past, tokens);
            const int32_t block = std::vector{1, 16, 70, 600}[static_cast<size_t>(round) % 4];
            sequence.choose(engine, (past + tokens - 1) / block + 1 + pick(engine, 0, 3), block);
            CHECK(same_bits(attend(*kernels, sequence, past, tokens), dense));
            CHECK(same_bits(attend_in_ranges(*kernels, sequence, past, tokens), dense));
        }
    }
}

TEST_CASE("attention: cells that are not chosen do not affect a row, whatever bits they hold") {
    Engine engine(33);
    Sequence sequence(engine, {700, 4, 64, 48, 0}, kHalfNan);
    sequence.choose(engine, 40);
    std::fill(sequence.chosen.begin(), sequence.chosen.end(), -1.0f);
    for (int32_t i = 0; i < 40; ++i)
        sequence.chosen[static_cast<size_t>(699 * 40 + i)] = static_cast<float>(17 * i + 3);
    sequence.append_all(attention_best(), engine);
    for (const AttentionKernels *kernels : all_kernels()) {
        const Floats before = attend(*kernels, sequence, 699, 1);
        Sequence other = sequence;  // the same pages
        for (int32_t cell = 0; cell < 700; ++cell) {
            if (cell < 17 * 40 && cell % 17 == 3) continue;
            std::fill_n(other.k.begin() + cell * 64, 64, cell % 2 == 0 ? NAN : 6e4f);
            std::fill_n(other.v.begin() + cell * 48, 48, NAN);
            other.append(*kernels, cell, 1);
        }
        CHECK(same_bits(attend(*kernels, other, 699, 1), before));
        sequence.append_all(*kernels, engine);
    }
}

TEST_CASE("indexer: scores are what the header defines, to the last bit, on every instruction set") {
    Engine engine(34);
    for (int round = 0; round < 24; ++round) {
        CAPTURE(round);
        const int32_t dim = std::vector<int32_t>{16, 33, 64, 128}[static_cast<size_t>(round) % 4];
        const int32_t heads = pick(engine, 1, 20), cells = pick(engine, 1, 150), tokens = pick(engine, 1, 5);
        Sequence sequence(engine, {cells, 1, dim, 1, 0});
        sequence.append_all(attention_best(), engine);
        const Floats q = normal(engine, int64_t{tokens} * heads * dim),
                     weights = normal(engine, int64_t{tokens} * heads), k = sequence.kept_k();
        IndexTile tile{};
        tile.pages = sequence.pages;
        tile.q = q.data(), tile.q_stride = heads * dim;
        const bool per_head = round % 3 == 2;
        if (!per_head) tile.weights = weights.data(), tile.weights_stride = heads;
        tile.tokens = tokens, tile.heads = heads;
        tile.first_page = 0, tile.end_page = (cells + 31) / 32;
        for (const AttentionKernels *kernels : all_kernels()) {
            CAPTURE(kernels->name);
            const Floats scores = index_scores(*kernels, tile);
            int wrong = 0;
            for (int32_t t = 0; t < tokens; ++t)
                for (int32_t cell = 0; cell < cells; ++cell) {
                    float sum = 0;
                    for (int32_t h = 0; h < heads; ++h) {
                        float dot = 0;
                        for (int32_t d = 0; d < dim; ++d)
                            dot = std::fma(q[static_cast<size_t>((t * heads + h) * dim + d)],
                                           k[static_cast<size_t>(cell * dim + d)], dot);
                        if (per_head)
                            wrong +=
                                scores[static_cast<size_t>((t * heads + h) * tile.end_page * 32 + cell)] !=
                                dot;
                        sum = std::fma(weights[static_cast<size_t>(t * heads + h)], std::max(dot, 0.0f), sum);
                    }
                    if (per_head) continue;
                    wrong += scores[static_cast<size_t>(t * tile.end_page * 32 + cell)] != sum;
                }
            CHECK(wrong == 0);
        }
    }
}

TEST_CASE("indexer: the newest blocks and those with the largest scores are chosen, the lower among equals") {
    Engine engine(35);
    for (int round = 0; round < 500; ++round) {
        CAPTURE(round);
        Indexer step{};
        step.block = round % 3 == 0 ? pick(engine, 2, 40) : 1;
        step.top_k = pick(engine, 1, step.block > 1 ? 12 : 80);
        step.local = step.block > 1 ? pick(engine, 1, step.top_k) : 0;
        CAPTURE(step.block);
        CAPTURE(step.top_k);
        CAPTURE(step.local);
        const int32_t cells = pick(engine, 1, 300);
        Floats scores = normal(engine, cells, round % 5 == 0 ? 1e-30f : 1);
        if (round % 2 == 0)  // many are equal
            for (float &x : scores) x = std::round(x * 2) / 2;
        if (round % 7 == 0)
            for (int i = 0; i < 20; ++i)
                scores[static_cast<size_t>(pick(engine, 0, cells - 1))] = i % 4 == 0   ? NAN
                                                                          : i % 4 == 1 ? INFINITY
                                                                          : i % 4 == 2 ? -INFINITY
                                                                                       : -0.0f;
        const std::vector<float> expected = tests::chosen_blocks(step, scores);
        Floats chosen(static_cast<size_t>(step.top_k), NAN);
        choose_blocks(step, scores, chosen.data());
        CHECK(std::equal(chosen.begin(), chosen.end(), expected.begin()));
    }
}
