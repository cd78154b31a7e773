// A cache whose cells several emulated GPUs divide (kernels/cuda/attention/divided_attention.h) gives the bits of one GPU.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/divided_groups.h"
#include "kernels/tensor_backend.h"
#include "tests/simt/nccl.h"
#include "tests/simt/simt.h"
#include "tests/support/program_runs.h"
#include "tests/support/split_ranks.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::kernels;
using tests::Gpus;
using tests::make_ranks;
using tests::one_gpu;
using tests::random_tokens;
using tests::same;
using tests::TinyProgram;
using tests::TinyShape;

namespace {

constexpr int32_t kBlocksPerRange = kRangeCells / kBlockTokens;
constexpr int32_t kRanges = 6;  // of each device
constexpr int32_t kMostTokens = 64;

// One GPU and several, whose caches have the same contents.
class Divided {
  public:
    Divided(const Program &program, int32_t ranks, uint32_t seed, CacheConfig types = {})
        : program_(program), ranks_(ranks), random_(seed), types_(types) {
        CacheConfig whole = types;
        const std::vector<int32_t> shares = divided_groups(program, ranks);
        whole.blocks.assign(shares.size(), ranks * kRanges * kBlocksPerRange);
        CacheConfig cut = whole;
        cut.shares = shares;
        one_ = one_gpu(0);
        one_->load(program, whole, kMostTokens);
        several_ = make_tensor_backend(make_ranks(one_gpu, static_cast<size_t>(ranks)),
                                       std::vector<double>(static_cast<size_t>(ranks), 1));
        several_->load(program, cut, kMostTokens);
        for (int32_t rank = 0; rank < ranks; ++rank) {
            std::vector<int32_t> ranges(kRanges);
            std::iota(ranges.begin(), ranges.end(), rank * kRanges);
            std::shuffle(ranges.begin(), ranges.end(), random_);
            free_.push_back(ranges);
        }
        fill(shares.size());
    }

    // A sequence whose ranges are on the devices in turn, from `rank` on, in any order of the blocks of a range.
    std::vector<BlockId> table(int32_t ranges, int32_t rank) {
        std::vector<BlockId> blocks;
        for (int32_t r = 0; r < ranges; ++r) {
            std::vector<int32_t> &free = free_[static_cast<size_t>((rank + r) % ranks_)];
            REQUIRE(!free.empty());
            std::vector<BlockId> range(kBlocksPerRange);
            std::iota(range.begin(), range.end(), free.back() * kBlocksPerRange);
            std::shuffle(range.begin(), range.end(), random_);
            blocks.insert(blocks.end(), range.begin(), range.end());
            free.pop_back();
        }
        return blocks;
    }

    // The next tokens of some sequences; the logits of all must be equal.
    struct Part {
        std::vector<BlockId> table;
        int32_t past, count, shared = 0, shared_from = 0;
        bool both_ways = false;
    };
    void step(const std::vector<Part> &parts) {
        std::vector<int32_t> positions, rows;
        std::vector<SequenceSpan> spans;
        for (const Part &part : parts) {
            SequenceSpan span{static_cast<int32_t>(positions.size()), part.count, part.past, {}};
            span.tables.assign(groups_, part.table);
            span.shared = part.shared, span.shared_from = part.shared_from;
            span.both_ways = part.both_ways && sees_both_ways(program_);
            spans.push_back(std::move(span));
            for (int32_t i = 0; i < part.count; ++i) positions.push_back(part.past + i);
        }
        rows.resize(positions.size());
        std::iota(rows.begin(), rows.end(), 0);
        const std::vector<int32_t> tokens = random_tokens(positions.size(), static_cast<uint32_t>(random_()));
        std::vector<float> logits[2];
        for (Backend *const backend : {one_.get(), several_.get()}) {
            std::vector<float> &to = logits[backend == several_.get()];
            to.resize(rows.size() * static_cast<size_t>(program_.vocab));
            REQUIRE(backend->execute({tokens, positions, spans, rows}, to));
        }
        CHECK(same(logits[0], logits[1]));
        for (size_t group = 0; group < groups_; ++group)
            for (const Part &part : parts)
                for (int32_t cell = part.past; cell < part.past + part.count; ++cell)
                    if (cell == part.past || cell % kBlockTokens == 0)
                        check_block(group, part.table[static_cast<size_t>(cell / kBlockTokens)]);
    }
    void copy_block(BlockId from, BlockId to) {
        const BlockCopy copy{from, to};
        for (size_t group = 0; group < groups_; ++group) {
            one_->copy_blocks(static_cast<int32_t>(group), {&copy, 1});
            several_->copy_blocks(static_cast<int32_t>(group), {&copy, 1});
        }
    }

  private:
    // Keys and values of some tokens, again and again.
    void fill(size_t groups) {
        groups_ = groups;
        constexpr int32_t kComputed = 2;
        const std::vector<int32_t> tokens = random_tokens(kComputed * kBlockTokens, 3), rows = {0};
        std::vector<int32_t> positions(tokens.size());
        std::iota(positions.begin(), positions.end(), 0);
        const std::vector<BlockId> table = {0, 1};
        SequenceSpan span{0, static_cast<int32_t>(tokens.size()), 0, {}};
        span.tables.assign(groups, table);
        std::vector<float> logits(static_cast<size_t>(program_.vocab));
        REQUIRE(one_->execute({tokens, positions, {&span, 1}, rows}, logits));
        for (size_t g = 0; g < groups; ++g) {
            const auto group = static_cast<int32_t>(g);
            std::vector<std::vector<std::byte>> blocks(kComputed, bytes_of_block(group));
            for (int32_t b = 0; b < kComputed; ++b)
                one_->read_block(group, b, blocks[static_cast<size_t>(b)]);
            for (BlockId b = 0; b < ranks_ * kRanges * kBlocksPerRange; ++b) {
                const auto &bytes = blocks[random_() % kComputed];
                one_->write_block(group, b, bytes);
                several_->write_block(group, b, bytes);
            }
        }
    }
    std::vector<std::byte> bytes_of_block(int32_t group) const {
        return std::vector<std::byte>(cache_block_bytes(program_, group, types_.k, types_.v));
    }
    void check_block(size_t group, BlockId block) {
        const auto g = static_cast<int32_t>(group);
        std::vector<std::byte> a = bytes_of_block(g), b = a;
        one_->read_block(g, block, a);
        several_->read_block(g, block, b);
        CHECK(a == b);
    }

    const Program &program_;
    const int32_t ranks_;
    std::mt19937 random_;
    CacheConfig types_;
    size_t groups_ = 0;
    std::unique_ptr<Backend> one_, several_;
    std::vector<std::vector<int32_t>> free_;  // ranges, by device
};

// Gives every attention step biases by distance.
void add_slopes(Program &program, const std::vector<float> &slopes) {
    Weight weight = program.weights[0];
    weight.name = "slopes", weight.type = gguf::Type::F32;
    weight.rows = weight.count = 1, weight.cols = static_cast<int64_t>(slopes.size());
    weight.data = reinterpret_cast<const std::byte *>(slopes.data());
    program.weights.push_back(weight);
    for (Step &step : program.steps)
        if (auto *attention = std::get_if<Attention>(&step))
            attention->slopes = static_cast<WeightId>(program.weights.size()) - 1;
}

// A batch with sequences of few and of many tokens.
void check_mixed_batch(Divided &divided, int32_t ranks) {
    const std::vector<BlockId> a = divided.table(3, 0), b = divided.table(2, ranks - 1);
    divided.step({{a, 1022, 3}, {b, 600, 18}});
}

// Batches of every kind.
void check_batches(Divided &divided, int32_t ranks) {
    const std::vector<BlockId> a = divided.table(4, 0), b = divided.table(2, ranks - 1),
                               d = divided.table(2, 1);
    std::vector<BlockId> c = divided.table(2, 0);
    std::copy_n(a.begin(), kBlocksPerRange, c.begin());  // the prefix of a
    divided.step({{a, 1601, 1}});
    divided.step({{a, 1534, 4}, {c, 520, 1}, {b, 0, 1}});
    divided.step({{a, 1530, 17}});                                       // across the end of a range
    divided.step({{b, 3, 7}, {c, 530, 18}, {a, 600, 2}, {d, 100, 20}});  // few, many, few, many
    // A draft and a branch of it, in a block of its own.
    std::vector<BlockId> branch = a;
    BlockId &own = branch[1300 / kBlockTokens];
    own = a[1535 / kBlockTokens];
    divided.copy_block(a[1300 / kBlockTokens], own);
    divided.step({{a, 1300, 6}, {branch, 1303, 2, 3, 0}});
    divided.step({{a, 530, 12, 0, 0, true}, {b, 40, 18, 0, 0, true}});
}

}  // namespace

TEST_CASE("divided GPUs: two to four give the bits of one, for few and many tokens") {
    for (const int32_t ranks : {2, 3, 4}) {
        CAPTURE(ranks);
        const Gpus gpus(ranks);
        std::optional<simt::WithNccl> nccl;
        if (ranks != 2) nccl.emplace();
        TinyShape shape{.layers = 1, .width = 32, .feed_forward = 32, .type = gguf::Type::Q8_0};
        shape.kv_heads = ranks == 2 ? 1 : 4, shape.heads = ranks == 2 ? 6 : 4;
        shape.head_norm = ranks == 3;
        const TinyProgram tiny(shape, 5);
        Divided divided(tiny.program(), ranks, 7);
        ranks == 2 ? check_batches(divided, ranks) : check_mixed_batch(divided, ranks);
        if (nccl) CHECK(simt::nccl().misuse.empty());
    }
}

TEST_CASE("divided GPUs: what goes around is rows of splits, or pages of K/V heads, and nothing else") {
    constexpr int32_t kRanks = 4, kHeads = 4, kHeadDim = 16, kBlockFloats = kBlockTokens * 2 * kHeadDim / 2;
    const Gpus gpus(kRanks);
    const simt::WithNccl nccl;
    TinyShape shape{.layers = 1, .width = 32, .feed_forward = 32, .heads = kHeads, .type = gguf::Type::Q8_0};
    shape.kv_heads = 4, shape.head_dim_k = shape.head_dim_v = kHeadDim;
    const TinyProgram tiny(shape, 5);
    Divided divided(tiny.program(), kRanks, 7);
    const std::vector<BlockId> table = divided.table(4, 0);
    const auto floats = [&](int32_t past, int32_t count) {
        const int64_t before = simt::nccl().floats;
        divided.step({{table, past, count}});
        return simt::nccl().floats - before;
    };
    // Six splits more, and 25 blocks more, whose K/V heads are on one rank each.
    CHECK(floats(1601, 2) - floats(100, 2) == 6 * 2 * kHeads * (kHeadDim + 2) * (kRanks - 1));
    CHECK(floats(840, 17) - floats(40, 17) == 25 * (kHeads - kHeads / kRanks) * kBlockFloats);
}

TEST_CASE("divided GPUs: packed keys and values, wide heads, biases by distance") {
    using enum CacheType;
    struct Case {
        CacheType k, v;
        int32_t kv_heads, head_dim;
    };
    for (const auto &[k, v, kv_heads, head_dim] :
         {Case{Q8_0, Q4_0, 2, 32}, Case{Q5_1, IQ4_NL, 1, 64}, Case{FP8, BF16, 1, 288}}) {
        CAPTURE(head_dim);
        const Gpus gpus(2);
        if (head_dim == 64) simt::settings().major = 7, simt::settings().minor = 5;
        TinyShape shape{.layers = 1, .width = 32, .feed_forward = 32, .heads = 2, .type = gguf::Type::Q8_0};
        shape.kv_heads = kv_heads, shape.head_dim_k = shape.head_dim_v = head_dim;
        const TinyProgram tiny(shape, 6);
        Program program = tiny.program();
        const std::vector<float> slopes = {0.01f, 0.05f};
        if (kv_heads == 2) add_slopes(program, slopes);
        Divided divided(program, 2, 8, {.blocks = {}, .k = k, .v = v});
        check_mixed_batch(divided, 2);
    }
}

TEST_CASE("divided GPUs: programs with random options, whose windows stay whole") {
    std::set<bool> done;  // by whether the values are the first dimensions of the keys
    for (uint32_t seed = 1; done.size() < 2; ++seed) {
        REQUIRE(seed < 40);
        TinyShape shape{.layers = 2, .width = 32, .feed_forward = 32, .type = gguf::Type::Q8_0};
        shape.varied = true;
        const TinyProgram tiny(shape, seed);
        const Program &program = tiny.program();
        const std::vector<int32_t> shares = divided_groups(program, 3);
        const CacheLayer &first = program.cache_layers[0];
        if (shares[static_cast<size_t>(first.group)] == 1) continue;
        if (!done.insert(first.head_dim_v == 0).second) continue;
        CAPTURE(seed);
        const Gpus gpus(3);
        Divided divided(program, 3, seed);
        check_mixed_batch(divided, 3);
    }
}

TEST_CASE("divided GPUs: a device that fails is named, and the next batch works") {
    const TinyProgram tiny({.layers = 1, .width = 32, .feed_forward = 32, .type = gguf::Type::Q8_0}, 9);
    for (const bool by_nccl : {false, true}) {
        const Gpus gpus(3);
        std::optional<simt::WithNccl> nccl;
        if (by_nccl) nccl.emplace();
        std::atomic<bool> armed = false;
        tests::Ranks three = make_ranks(one_gpu, 3);
        three[1] = std::make_unique<tests::FailingBackend>(std::move(three[1]), armed, 1);
        const auto backend = make_tensor_backend(std::move(three), {1, 1, 1}, tests::rank_names(3));
        CacheConfig cache{{3 * kBlocksPerRange}};
        cache.shares = {3};
        backend->load(tiny.program(), cache, kMostTokens);
        const std::vector<int32_t> tokens = random_tokens(20, 9), rows = {19};
        std::vector<int32_t> positions(20);
        std::iota(positions.begin(), positions.end(), 0);
        const std::vector<BlockId> table = {2 * kBlocksPerRange};
        const SequenceSpan span{0, 20, 0, {table}};
        std::vector<float> logits(static_cast<size_t>(tiny.program().vocab)), expected;
        for (const bool fails : {false, true, false}) {
            armed = fails;
            const auto execute = [&] {
                return backend->execute({tokens, positions, {&span, 1}, rows}, logits);
            };
            if (fails) {
                CHECK_THROWS_WITH_AS(execute(), "number 1: the device is lost", BackendError);
                continue;
            }
            REQUIRE(execute());
            if (expected.empty()) expected = logits;
            CHECK(same(logits, expected));
        }
    }
}
