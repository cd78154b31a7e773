// Rows that attend to cells after their own, up to the end of their block (AttentionTile::common_end).
#include <doctest/doctest.h>

#include "tests/kernels/cpu/attention_sequence.h"

using namespace runnel::kernels;
using namespace runnel::kernels::cpu;
using namespace runnel::testing;

namespace {

// The rows in tiles of `step` tokens.
Floats attend_in_tiles(const AttentionKernels &kernels, const Sequence &sequence, int32_t cell,
                       int32_t tokens, int32_t step) {
    Floats out;
    for (int32_t t = 0; t < tokens; t += step) {
        const Floats rows = attend(kernels, sequence, cell + t, std::min(step, tokens - t));
        out.insert(out.end(), rows.begin(), rows.end());
    }
    return out;
}

void check_block(const Sequence &sequence, int32_t past, int32_t tokens, int32_t step) {
    const Floats scalar = attend(attention_scalar(), sequence, past, tokens);
    CHECK(error_against_reference(sequence, past, tokens, scalar) < 5e-6);
    for (const AttentionKernels *kernels : all_kernels()) {
        CAPTURE(kernels->name);
        CHECK(same_bits(attend(*kernels, sequence, past, tokens), scalar));
        CHECK(same_bits(attend_in_ranges(*kernels, sequence, past, tokens), scalar));
        CHECK(same_bits(attend_one_by_one(*kernels, sequence, past, tokens), scalar));
        CHECK(same_bits(attend_in_tiles(*kernels, sequence, past, tokens, step), scalar));
        // The first tokens alone have the ranges of later ones, too.
        const Floats first = attend_in_ranges(*kernels, sequence, past, step);
        CHECK(std::equal(first.begin(), first.end(), scalar.begin()));
    }
}

}  // namespace

TEST_CASE("block attention: random shapes agree with double precision, with the same bits in all tiles") {
    Engine engine(21);
    constexpr int32_t kDims[] = {16, 33, 64, 80, 128, 256}, kHeads[] = {1, 2, 3, 4, 7, 8, 16};
    for (int round = 0; round < 30; ++round) {
        const int32_t tokens = round % 5 == 0 ? pick(engine, 1, 80) : pick(engine, 1, 17);
        const int32_t past = round % 4 == 0   ? 0
                             : round % 4 == 1 ? pick(engine, 490, 530)
                                              : pick(engine, 1, 200);
        const int32_t head_dim = kDims[round % 6];
        Shape shape{past + tokens, kHeads[round % 7], head_dim, round % 3 == 0 ? kDims[round % 5] : head_dim,
                    round % 2 == 0 ? 0 : pick(engine, 1, past + tokens)};
        shape.softcap = round % 5 == 1 ? 3.0f : 0;
        shape.sinks = round % 4 == 1;
        if (round % 3 == 1) shape.k_type = shape.v_type = CacheType::Q8_0;
        CAPTURE(round);
        CAPTURE(tokens);
        CAPTURE(past);
        CAPTURE(shape.heads);
        CAPTURE(shape.head_dim_k);
        CAPTURE(shape.head_dim_v);
        CAPTURE(shape.window);
        Sequence sequence(engine, shape, round % 5 == 0 ? kHalfInfinity : kHalfNan, 2);
        sequence.append_all(attention_best(), engine);
        sequence.common_end = past + tokens;
        check_block(sequence, past, tokens, pick(engine, 1, tokens));
    }
}

TEST_CASE("block attention: results are right at page and range boundaries and with windows") {
    Engine engine(22);
    for (const int32_t cells : {16, 31, 32, 33, 40, 64, 511, 512, 513, 520, 1024, 1030})
        for (const int32_t window : {0, 1, 2, 15, 16, 17, 33, 512, 513}) {
            CAPTURE(cells);
            CAPTURE(window);
            Sequence sequence(engine, {cells, 3, 33, 40, window});
            sequence.append_all(attention_best(), engine);
            sequence.common_end = cells;
            check_block(sequence, cells - 16, 16, 5);
            CHECK(same_bits(attend(attention_best(), sequence, cells - 16, 16),
                            attend_by_definition(sequence, cells - 16, 16)));
        }
}

TEST_CASE("block attention: a block of one token has the bits of an ordinary one") {
    Engine engine(23);
    for (const int32_t cells : {1, 33, 600}) {
        Sequence sequence(engine, {cells, 4, 64, 64, cells == 33 ? 20 : 0});
        sequence.append_all(attention_best(), engine);
        const Floats ordinary = attend(attention_best(), sequence, cells - 1, 1);
        sequence.common_end = cells;
        CHECK(same_bits(attend(attention_best(), sequence, cells - 1, 1), ordinary));
    }
}

TEST_CASE("block attention: cells after the block do not affect it, later cells of it do") {
    Engine engine(24);
    for (const AttentionKernels *kernels : all_kernels()) {
        CAPTURE(kernels->name);
        constexpr int32_t kCells = 64, kPast = 37, kTokens = 16, kDim = 64;
        Sequence sequence(engine, {kCells, 2, kDim, kDim, 0});
        sequence.common_end = kPast + kTokens;
        sequence.append(*kernels, 0, kPast + kTokens);  // the cells after these hold NaN
        const Floats expected = attend(*kernels, sequence, kPast, kTokens);
        CHECK(error_against_reference(sequence, kPast, kTokens, expected) < 5e-6);
        for (int32_t d = 0; d < kDim; ++d)
            sequence.v[static_cast<size_t>((kPast + kTokens - 1) * kDim + d)] += 1;
        sequence.append(*kernels, kPast + kTokens - 1, 1);
        const Floats changed = attend(*kernels, sequence, kPast, kTokens);
        int same = 0;
        for (size_t i = 0; i < expected.size(); ++i) same += changed[i] == expected[i];
        CHECK(same == 0);  // a later cell's value is a part of every row
    }
}
