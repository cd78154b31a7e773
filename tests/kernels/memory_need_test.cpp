// The device memory that a program needs is known in advance, to the byte, and none is allocated later.
#include "kernels/cuda/runtime/memory_need.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/cuda/attention/attention_memory.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/tensor_program.h"
#include "tests/simt/simt.h"
#include "tests/support/random.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::kernels;
using namespace runnel::kernels::cuda;
using tests::TinyProgram;
using tests::TinyShape;

namespace {

// Tokens of one sequence, and its block table; blocks_from() makes one of adjacent blocks.
struct Sequence {
    int32_t count, past;
    std::vector<BlockId> table;
};
std::vector<BlockId> blocks_from(BlockId first, int32_t count) {
    std::vector<BlockId> table(static_cast<size_t>(count));
    std::iota(table.begin(), table.end(), first);
    return table;
}

// Logits of the last token of every sequence. Token i of the batch is first_token + i.
std::vector<float> run(Backend &backend, const Program &program, const std::vector<Sequence> &sequences,
                       int32_t first_token = 1, int32_t groups = 1) {
    std::vector<int32_t> tokens, positions, rows;
    std::vector<SequenceSpan> spans;
    for (const Sequence &s : sequences) {
        spans.push_back({static_cast<int32_t>(tokens.size()), s.count, s.past, {}});
        for (int32_t group = 0; group < groups; ++group) spans.back().tables.emplace_back(s.table);
        for (int32_t i = 0; i < s.count; ++i) {
            tokens.push_back((first_token + static_cast<int32_t>(tokens.size())) % 50);
            positions.push_back(s.past + i);
        }
        rows.push_back(static_cast<int32_t>(tokens.size()) - 1);
    }
    std::vector<float> logits(rows.size() * static_cast<size_t>(program.vocab));
    REQUIRE(backend.execute({tokens, positions, spans, rows}, logits));
    return logits;
}

}  // namespace

TEST_CASE("memory need: load() allocates exactly the predicted bytes, and batches none") {
    constexpr int32_t kTokens = 40, kBlocks = 12, kContext = 320;
    std::vector<TinyShape> shapes = {
        {.layers = 1, .bias = true, .type = gguf::Type::Q8_0},
        {.layers = 1, .heads = 2, .kv_heads = 1, .head_dim_k = 136, .head_dim_v = 64},
        {.layers = 1, .window = 40, .head_norm = true},
        {.layers = 1, .type = gguf::Type::Q8_0, .experts = {.count = 5, .routing = {.used = 2}}}};
    for (size_t i = 0; i < 8; ++i) {
        CAPTURE(i);
        TinyShape shape = i < 4 ? shapes[i] : TinyShape{.layers = 2, .type = gguf::Type::F16};
        shape.varied = i >= 4;
        const TinyProgram tiny(shape, 70 + static_cast<uint32_t>(i));
        const Program &program = tiny.program();
        const auto missing = missing_kernels(program);
        if (std::any_of(missing.begin(), missing.end(), [](const std::string &why) { return !why.empty(); }))
            continue;
        CacheConfig cache{{}, i % 2 ? CacheType::Q8_0 : CacheType::F16, CacheType::F16, kContext};
        int32_t groups = 0;
        for (const CacheLayer &layer : program.cache_layers) groups = std::max(groups, layer.group + 1);
        cache.blocks.assign(static_cast<size_t>(groups), kBlocks);
        const MemoryNeed need = memory_need(program, cache, kTokens);
        CHECK(need.cache == cache_memory(program, cache, kTokens));

        simt::take_peak_memory();
        const size_t before = simt::take_peak_memory();
        const auto backend = make_cuda_backend(0);
        backend->load(program, cache, kTokens);
        CHECK(simt::take_peak_memory() - before <= need.all());  // including the buffers of the upload
        const size_t taken = simt::take_peak_memory() - before;
        CHECK(taken == need.all() - kDriverReserve);

        run(*backend, program, {{kTokens, 0, blocks_from(0, 10)}}, 1, groups);
        for (int32_t past = kTokens; i == 0 && past < kContext; past += kTokens)
            run(*backend, program, {{kTokens, past, blocks_from(0, 10)}}, 1, groups);
        std::vector<Sequence> few, many;
        for (int32_t s = 0; s < kLinearTokens; ++s) few.push_back({1, 0, blocks_from(s % kBlocks, 1)});
        for (int32_t s = 0; s < kBlocks; ++s) many.push_back({3, 0, blocks_from(s, 1)});
        if (i == 0) run(*backend, program, few, 1, groups);
        run(*backend, program, many, 1, groups);
        CHECK(simt::take_peak_memory() - before == taken);
    }
}

TEST_CASE("memory need: a rank that holds some cells of the cache takes the predicted bytes") {
    TinyShape shape{.layers = 3, .type = gguf::Type::Q8_0};
    for (const int32_t kv_heads : {1, 4}) {
        CAPTURE(kv_heads);
        shape.kv_heads = kv_heads;
        const TinyProgram tiny(shape, 80);
        const TensorProgram tensor =
            cut_program(tiny.program(), std::vector<double>{1, 1, 1}, std::vector<int32_t>{3});
        CacheConfig whole{{3 * 2 * kRangeCells / kBlockTokens}, CacheType::F16, CacheType::Q8_0};
        whole.shares = {3};
        for (size_t rank = 0; rank < 3; ++rank) {
            const CacheConfig own = share_of(whole, rank);
            const MemoryNeed need = memory_need(tensor.programs[rank], own, 40);
            simt::take_peak_memory();
            const size_t before = simt::take_peak_memory();
            const auto backend = make_cuda_backend(0);
            backend->load(tensor.programs[rank], own, 40);
            CHECK(simt::take_peak_memory() - before == need.all() - kDriverReserve);
        }
    }
}

TEST_CASE("memory need: a rank of a mixture cut by rows holds its rows only, to the predicted byte") {
    TinyShape shape{.layers = 1, .width = 128, .feed_forward = 256, .type = gguf::Type::Q8_0};
    shape.experts = {.count = 16, .routing = {.used = 2}, .biases = true};
    const TinyProgram tiny(shape, 79);
    const CacheConfig cache{{4}};
    const size_t whole = memory_need(tiny.program(), cache, 8).weights;
    const TensorProgram tensor = cut_program(tiny.program(), std::vector<double>{3, 1});
    for (size_t rank = 0; rank < 2; ++rank) {
        const Program &own = tensor.programs[rank];
        const MemoryNeed need = memory_need(own, cache, 8);
        CHECK(static_cast<double>(need.weights) ==
              doctest::Approx((rank == 0 ? 0.75 : 0.25) * static_cast<double>(whole)).epsilon(0.05));
        simt::take_peak_memory();
        const size_t before = simt::take_peak_memory();
        const auto backend = make_cuda_backend(0);
        backend->load(own, cache, 8);
        simt::take_peak_memory();
        CHECK(simt::take_peak_memory() - before == need.all() - kDriverReserve);
    }
}

TEST_CASE("memory need: keys of more than 128 dimensions with values of fewer have room for their totals") {
    const TinyProgram tiny({.layers = 1,
                            .heads = 1,
                            .kv_heads = 1,
                            .head_dim_k = 136,
                            .head_dim_v = 64,
                            .type = gguf::Type::F16},
                           9);
    const Program &program = tiny.program();
    for (const bool on_turing : {false, true}) {
        CHECK(attention_prefill_totals(136, 64, 3, on_turing) == 3 * 64 * 128);
        CHECK(attention_prefill_totals(64, 136, 3, on_turing) == 3 * 64 * 128);
        CHECK(attention_prefill_totals(128, 128, 3, on_turing) == (on_turing ? 3 * 64 * 128 : 0));
    }
    CHECK(attention_totals(program, 300) ==
          attention_prefill_totals(136, 64, prefill_blocks(1, 1, 300), false));
    const auto backend = make_cuda_backend(0);
    backend->load(program, {{10}}, 300);
    const std::vector<float> whole = run(*backend, program, {{300, 0, blocks_from(0, 10)}});
    run(*backend, program, {{290, 0, blocks_from(0, 10)}});
    const std::vector<float> tail = run(*backend, program, {{10, 290, blocks_from(0, 10)}}, 291);
    REQUIRE(whole.size() == tail.size());
    CHECK(std::memcmp(whole.data(), tail.data(), whole.size() * sizeof(float)) == 0);
}

TEST_CASE(
    "memory need: batches whose partial results do not fit at once run in several launches, bit for bit") {
    const TinyProgram tiny({.layers = 1,
                            .heads = 32,
                            .kv_heads = 32,
                            .head_dim_k = 8,
                            .head_dim_v = 256,
                            .window = 8,
                            .type = gguf::Type::Q8_0},
                           4);
    const Program &program = tiny.program();
    const CacheConfig cache{.blocks = {8 + kLinearTokens}, .context = 288};
    const int64_t room = attention_partials(program, cache, 32);
    std::vector<Sequence> sequences;
    std::vector<SequenceSpan> spans;
    for (int32_t s = 0; s < kLinearTokens; ++s) {
        sequences.push_back({1, 256, {-1, -1, -1, -1, -1, -1, -1, 7, 8 + s}});
        spans.push_back({s, 1, 256, {}});
    }
    // Every head of every sequence spans the end of one split and the beginning of the next.
    CHECK(attention_launches(program, spans, kLinearTokens, room) == AttentionLaunches{2, 256});
    CHECK(attention_launches(program, std::span(spans).first(2), 2, room) == AttentionLaunches{});

    const auto backend = make_cuda_backend(0);
    backend->load(program, cache, 32);
    std::vector<uint16_t> halves(cache_block_bytes(program, 0) / 2);  // 0.5 to 2
    for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(0x3800 + i * 37 % 0x800);
    backend->write_block(0, 7, std::as_bytes(std::span(halves)));
    const std::vector<float> together = run(*backend, program, sequences);
    for (const size_t s : {size_t{7}, size_t{8}}) {
        CAPTURE(s);
        const std::vector<float> alone = run(*backend, program, {sequences[s]}, 1 + static_cast<int32_t>(s));
        CHECK(std::memcmp(alone.data(), &together[s * alone.size()], alone.size() * sizeof(float)) == 0);
    }
}

TEST_CASE("memory need: the partial results of each launch of a batch fit") {
    testing::Random random(31);
    for (int round = 0; round < 300; ++round) {
        CAPTURE(round);
        TinyShape shape{.layers = 1, .head_dim_k = 16, .head_dim_v = 128};
        shape.kv_heads = 1 + static_cast<int32_t>(random.below(4));
        shape.heads = shape.kv_heads * (1 + static_cast<int32_t>(random.below(20)));
        shape.window = random.below(2) ? 0 : 1 + static_cast<int32_t>(random.below(2000));
        Program program;
        program.cache_layers = {{shape.kv_heads, 16, 128, 0}};
        Attention step{};
        step.heads = shape.heads, step.kv_heads = shape.kv_heads, step.window = shape.window;
        step.head_dim_k = 16, step.head_dim_v = 128;
        step.sink_cells = shape.window > 0 ? static_cast<int32_t>(random.below(300)) : 0;
        program.steps = {step};
        const auto context = 1 + static_cast<int32_t>(random.below(200000)),
                   most = 1 + static_cast<int32_t>(random.below(512));
        const CacheConfig cache{.blocks = {context / 32 + 1}, .context = context};
        const int64_t partials = attention_partials(program, cache, most);
        const int64_t item = attention_partial_floats(1, 128), group = shape.heads / shape.kv_heads;
        // Sequences that share nearly all of their cells.
        std::vector<SequenceSpan> spans;
        int32_t tokens = 0;
        while (tokens < most && context > 4) {
            const int32_t count = 1 + static_cast<int32_t>(random.below(
                                          static_cast<uint64_t>(std::min({most - tokens, context, 40}))));
            spans.push_back({tokens,
                             count,
                             static_cast<int32_t>(random.below(static_cast<uint64_t>(context - count + 1))),
                             {}});
            tokens += count;
        }
        const AttentionLaunches launches = attention_launches(program, spans, tokens, partials);
        std::vector<int64_t> splits;  // of every unit
        AttentionParams p{};
        p.window = step.window, p.sink_cells = step.sink_cells;
        for (const SequenceSpan &s : spans) {
            if (tokens > kLinearTokens && s.count * group > kDecodeRows) continue;
            const Splits parts = splits_of(p, {s.first, s.count, s.past});
            splits.insert(splits.end(), static_cast<size_t>((s.count * group + 15) / 16 * shape.kv_heads),
                          parts.sinks + parts.others);
        }
        REQUIRE(int64_t{launches.count} * launches.units >= static_cast<int64_t>(splits.size()));
        for (int32_t i = 0; i < launches.count; ++i) {
            const auto begin = static_cast<size_t>(
                std::min(int64_t{i} * launches.units, static_cast<int64_t>(splits.size())));
            const size_t end = std::min(splits.size(), begin + static_cast<size_t>(launches.units));
            const auto at = [&](size_t j) { return splits.begin() + static_cast<std::ptrdiff_t>(j); };
            REQUIRE(std::accumulate(at(begin), at(end), int64_t{0}) * item <= partials);
        }
    }
}

TEST_CASE("memory need: what does not fit on the device or in host memory is refused with the numbers") {
    MemoryNeed need{.weights = size_t{3} << 20, .cache = size_t{2} << 20, .work = size_t{1} << 20};
    expect_memory(need, need.all());
    CHECK_THROWS_WITH_AS(
        expect_memory(need, size_t{4} << 20),
        "the GPU has 4 MiB free, but 6 MiB are needed (3 MiB of weights, 2 MiB of cache, 1 MiB of work "
        "memory): choose a smaller context with -c, or --device cpu",
        BackendError);
    need.host = size_t{1} << 60;
    try {
        expect_memory(need, need.all());
        FAIL("accepted");
    } catch (const BackendError &error) {
        CHECK(error.kind == BackendError::Kind::OutOfMemory);
        CHECK(std::string(error.what()).find("are free: choose --cpu-moe") != std::string::npos);
    }
}
