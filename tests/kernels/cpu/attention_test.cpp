#include "kernels/cpu/attention.h"

#include <doctest/doctest.h>

#include "tests/kernels/cpu/attention_sequence.h"

using namespace runnel::kernels;
using namespace runnel::kernels::cpu;
using namespace runnel::testing;

TEST_CASE("append writes K transposed and V in rows") {
    Engine engine(1);
    for (const AttentionKernels *kernels : all_kernels()) {
        CAPTURE(kernels->name);
        for (const auto &[dk, dv] : std::vector<std::pair<int32_t, int32_t>>{{64, 64}, {33, 47}, {100, 36}}) {
            Sequence sequence(engine, {70, 1, dk, dv, 0});
            sequence.append_all(*kernels, engine);
            std::vector<uint16_t> k(sequence.k.size()), v(sequence.v.size());
            vector_scalar().to_half(sequence.k.data(), static_cast<int64_t>(k.size()), k.data());
            vector_scalar().to_half(sequence.v.data(), static_cast<int64_t>(v.size()), v.data());
            int wrong = 0;
            for (int32_t cell = 0; cell < 96; ++cell) {
                const auto block = static_cast<size_t>(sequence.table[static_cast<size_t>(cell / 32)]);
                const auto *k_page =
                    reinterpret_cast<const uint16_t *>(sequence.pages.k + block * sequence.pages.k_stride);
                const auto *v_page =
                    reinterpret_cast<const uint16_t *>(sequence.pages.v + block * sequence.pages.v_stride);
                const bool written = cell < 70;
                for (int32_t d = 0; d < dk; ++d)
                    wrong += k_page[d * 32 + cell % 32] !=
                             (written ? k[static_cast<size_t>(cell * dk + d)] : kHalfNan);
                for (int32_t d = 0; d < dv; ++d)
                    wrong += v_page[cell % 32 * dv + d] !=
                             (written ? v[static_cast<size_t>(cell * dv + d)] : kHalfNan);
            }
            CHECK(wrong == 0);
        }
    }
}

TEST_CASE("attention: random shapes agree with double precision") {
    Engine engine(2);
    const std::vector<int32_t> dims{1, 7, 16, 32, 33, 48, 64, 80, 96, 100, 128, 192, 256};
    const auto any_dim = [&] {
        return dims[static_cast<size_t>(pick(engine, 0, static_cast<int32_t>(dims.size()) - 1))];
    };
    for (int round = 0; round < 80; ++round) {
        const int32_t tokens = round % 3 == 0 ? 1 : pick(engine, 1, 40);
        const int32_t past = pick(engine, 0, 3) == 0 ? 0 : pick(engine, 0, 200);
        const int32_t heads =
            std::vector<int32_t>{1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 64}[static_cast<size_t>(round) % 11];
        const int32_t head_dim_k = any_dim();
        const bool values_are_keys = round % 7 == 3;
        const Shape shape{past + tokens,
                          heads,
                          head_dim_k,
                          values_are_keys  ? std::max(1, head_dim_k - 16)
                          : round % 4 == 0 ? any_dim()
                                           : head_dim_k,
                          round % 2 == 0 ? 0 : pick(engine, 1, past + tokens),
                          round % 3 == 0,
                          round % 5 == 1 ? 3.0f : 0,
                          round % 4 == 1,
                          values_are_keys,
                          CacheType::F16,
                          CacheType::F16,
                          0,
                          round % 5 == 2};
        CAPTURE(round);
        CAPTURE(tokens);
        CAPTURE(past);
        CAPTURE(heads);
        CAPTURE(shape.head_dim_k);
        CAPTURE(shape.head_dim_v);
        CAPTURE(shape.window);
        CAPTURE(shape.chunked);
        CAPTURE(shape.softcap);
        CAPTURE(shape.sinks);
        CAPTURE(shape.slopes);
        CAPTURE(values_are_keys);
        Sequence sequence(engine, shape, round % 5 == 0 ? kHalfInfinity : kHalfNan, 2);
        sequence.append_all(attention_best(), engine);
        const Floats scalar = attend(attention_scalar(), sequence, past, tokens);
        CHECK(error_against_reference(sequence, past, tokens, scalar) < 5e-6);
        for (const AttentionKernels *kernels : all_kernels()) {
            CAPTURE(kernels->name);
            CHECK(same_bits(attend(*kernels, sequence, past, tokens), scalar));
            CHECK(same_bits(attend_in_ranges(*kernels, sequence, past, tokens), scalar));
            CHECK(same_bits(attend_one_by_one(*kernels, sequence, past, tokens), scalar));
        }
    }
}

TEST_CASE("attention: rows are what the header defines, to the last bit") {
    Engine engine(7);
    for (const Shape shape :
         {Shape{1, 1, 32, 32, 0}, Shape{1090, 3, 33, 20, 0}, Shape{1090, 3, 33, 20, 600},
          Shape{700, 8, 64, 64, 33}, Shape{45, 5, 80, 96, 0}, Shape{1090, 3, 33, 20, 600, true, 4, true},
          Shape{540, 2, 64, 48, 0, false, 0, true, true},
          Shape{1090, 3, 33, 20, 0, false, 0, false, false, CacheType::F16, CacheType::F16, 0, true},
          Shape{1090, 3, 33, 20, 40, false, 4, true, false, CacheType::F16, CacheType::F16, 20, true}}) {
        CAPTURE(shape.cells);
        CAPTURE(shape.window);
        Sequence sequence(engine, shape, kHalfNan, 3);
        sequence.append_all(attention_best(), engine);
        const int32_t tokens = std::min(shape.cells, 9), cell = shape.cells - tokens;
        CHECK(same_bits(attend(attention_best(), sequence, cell, tokens),
                        attend_by_definition(sequence, cell, tokens)));
    }
}

TEST_CASE("attention: results are right at page and range boundaries and with windows") {
    Engine engine(3);
    for (const int32_t cells : {1, 31, 32, 33, 64, 65, 511, 512, 513, 1023, 1024, 1025, 1100}) {
        for (const int32_t window : {0, 1, 2, 31, 32, 33, 500, 512, 513, 1024}) {
            CAPTURE(cells);
            CAPTURE(window);
            Sequence sequence(engine, {cells, 3, 33, 40, window});
            sequence.append_all(attention_best(), engine);
            const int32_t tokens = std::min(cells, 4);
            const Floats scalar = attend(attention_scalar(), sequence, cells - tokens, tokens);
            CHECK(error_against_reference(sequence, cells - tokens, tokens, scalar) < 5e-6);
            for (const AttentionKernels *kernels : all_kernels()) {
                CAPTURE(kernels->name);
                CHECK(same_bits(attend(*kernels, sequence, cells - tokens, tokens), scalar));
                CHECK(same_bits(attend_in_ranges(*kernels, sequence, cells - tokens, tokens), scalar));
                CHECK(same_bits(attend_one_by_one(*kernels, sequence, cells - tokens, tokens), scalar));
            }
        }
    }
}

TEST_CASE("attention: a prompt in any chunks gives the same rows as token by token") {
    Engine engine(4);
    for (const Shape shape : {Shape{600, 1, 64, 64, 0}, Shape{560, 4, 32, 32, 100}, Shape{150, 7, 80, 80, 0},
                              Shape{90, 16, 36, 36, 37}}) {
        CAPTURE(shape.cells);
        CAPTURE(shape.heads);
        Floats expected;
        {
            Sequence sequence(engine, shape);
            const AttentionKernels &kernels = attention_best();
            for (int32_t cell = 0; cell < shape.cells; ++cell) {
                sequence.append(kernels, cell, 1);
                const Floats row = attend(kernels, sequence, cell, 1);
                expected.insert(expected.end(), row.begin(), row.end());
            }
            for (const int32_t chunk : {2, 3, 16, 17, 31, 32, 33, 64}) {
                CAPTURE(chunk);
                Floats out;
                for (int32_t cell = 0; cell < shape.cells; cell += chunk) {
                    const Floats rows = attend(kernels, sequence, cell, std::min(chunk, shape.cells - cell));
                    out.insert(out.end(), rows.begin(), rows.end());
                }
                CHECK(same_bits(out, expected));
            }
        }
    }
}

TEST_CASE("attention: cells outside a row's window do not affect it") {
    Engine engine(5);
    for (const AttentionKernels *kernels : all_kernels()) {
        for (const int32_t window : {0, 40}) {
            CAPTURE(kernels->name);
            CAPTURE(window);
            const int32_t cells = 150, first = 118, tokens = 32;
            Sequence clean(engine, {cells, 2, 64, 64, window});
            clean.append_all(*kernels, engine);
            const Floats expected = attend(*kernels, clean, first, tokens);

            // A later token of the same tile holds NaN and infinities: only rows from there on may change.
            const int32_t poisoned = 133;
            for (int32_t d = 0; d < 64; ++d) {
                clean.k[static_cast<size_t>(poisoned * 64 + d)] = d % 2 == 0 ? NAN : INFINITY;
                clean.v[static_cast<size_t>(poisoned * 64 + d)] = d % 2 == 0 ? INFINITY : NAN;
            }
            clean.append(*kernels, poisoned, 1);
            const Floats out = attend(*kernels, clean, first, tokens);
            const size_t before = clean.rows_size(poisoned - first);
            CHECK(std::memcmp(out.data(), expected.data(), before * sizeof(float)) == 0);
            CHECK(std::all_of(out.begin() + static_cast<ptrdiff_t>(before), out.end(),
                              [](float x) { return std::isnan(x); }));

            // Blocks outside the window are never read.
            if (window == 0) continue;
            const int32_t seen = 79;  // the first cell visible to the tile's first row
            std::fill(clean.table.begin(), clean.table.begin() + seen / kBlockTokens, 1 << 30);
            CHECK(std::memcmp(attend(*kernels, clean, first, tokens).data(), expected.data(),
                              before * sizeof(float)) == 0);
        }
    }
}

TEST_CASE("attention: large and equal scores agree with double precision") {
    Engine engine(6);
    Sequence sequence(engine, {1200, 8, 64, 64, 0}, kHalfNan, 200);
    sequence.append_all(attention_best(), engine);
    const Floats scalar = attend(attention_scalar(), sequence, 1196, 4);
    CHECK(error_against_reference(sequence, 1196, 4, scalar) <
          2e-4);  // scores of +-600 keep 4 decimal digits
    for (const AttentionKernels *kernels : all_kernels()) {
        CAPTURE(kernels->name);
        CHECK(same_bits(attend(*kernels, sequence, 1196, 4), scalar));
        CHECK(same_bits(attend_in_ranges(*kernels, sequence, 1196, 4), scalar));
    }
    // All queries zero: the mean of the values.
    std::fill(sequence.q.begin(), sequence.q.end(), 0.0f);
    CHECK(error_against_reference(sequence, 1196, 4, attend(attention_best(), sequence, 1196, 4)) < 1e-6);
}

TEST_CASE("attention: sink cells are visible to every row, with separate queries") {
    Engine engine(10);
    for (const int32_t sinks : {1, 4, 31, 32, 33, 100, 512})
        for (const int32_t window : {1, 30, 64, 600}) {
            CAPTURE(sinks);
            CAPTURE(window);
            Shape shape{1090, 3, 33, 20, window};
            shape.sink_cells = sinks;
            shape.sinks = window == 30;
            Sequence sequence(engine, shape);
            sequence.append_all(attention_best(), engine);
            for (const int32_t cell : {0, 3, sinks - 1, sinks, 505, 1083}) {
                CAPTURE(cell);
                const Floats expected = attend_by_definition(sequence, cell, 7);
                for (const AttentionKernels *kernels : all_kernels()) {
                    CAPTURE(kernels->name);
                    CHECK(same_bits(attend(*kernels, sequence, cell, 7), expected));
                    CHECK(same_bits(attend_in_ranges(*kernels, sequence, cell, 7), expected));
                    CHECK(same_bits(attend_one_by_one(*kernels, sequence, cell, 7), expected));
                }
            }
        }
}
