// A leader and its followers, here threads, give the bits of one device. Between processes: mpi_communicator_test.cpp.
#include "kernels/group_backend.h"

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <thread>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/row_selection.h"
#include "tests/support/program_runs.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::kernels;
using tests::kBlocks;
using tests::kMaxTokens;
using tests::random_tokens;
using tests::run;
using tests::run_branch;
using tests::same;
using tests::TinyProgram;
using tests::TinyShape;

namespace {

using Follower = std::function<void(Communicator &)>;

// Runs lead(backend) with a follower on each of the other ranks. Returns what the followers throw; empty: nothing.
std::vector<std::string> with_followers(size_t ranks, const std::vector<double> &shares,
                                        const Follower &follower,
                                        const std::function<void(Backend &)> &lead) {
    const auto communicators = make_local_communicators(static_cast<int>(ranks), std::chrono::seconds(60));
    std::vector<std::string> errors(ranks);
    std::vector<std::thread> threads;
    for (size_t r = 1; r < ranks; ++r)
        threads.emplace_back([&, r] {
            try {
                follower(*communicators[r]);
            } catch (const BackendError &error) {
                errors[r] = error.what();
            }
        });
    try {
        const auto backend = make_leading_backend(cpu::make_cpu_backend(1), *communicators[0], shares);
        lead(*backend);
    } catch (...) {
        communicators[0]->abort("the test has failed");
        for (std::thread &thread : threads) thread.join();
        throw;
    }
    for (std::thread &thread : threads) thread.join();
    return errors;
}

TinyShape shape_of(uint32_t seed) {
    TinyShape shape{.layers = 3, .type = seed % 2 ? gguf::Type::Q8_0 : gguf::Type::F32};
    shape.varied = seed > 2;
    shape.heads = 8, shape.kv_heads = std::vector<int32_t>{1, 2, 4}[seed % 3];
    shape.width = 96, shape.feed_forward = 160, shape.vocab = 150;
    return shape;
}

// The message of the error that f throws.
std::string error_of(const std::function<void()> &f) {
    try {
        f();
    } catch (const BackendError &error) {
        return error.what();
    }
    return "no error";
}

}  // namespace

TEST_CASE("group: a leader and its followers give the bits of one device") {
    for (uint32_t seed = 1; seed <= 4; ++seed) {
        CAPTURE(seed);
        const TinyProgram tiny(shape_of(seed), seed);
        const Program &program = tiny.program();
        const std::vector<int32_t> tokens = random_tokens(kMaxTokens, seed);
        const CacheConfig cache{{kBlocks}, seed % 2 ? CacheType::F16 : CacheType::Q8_0};
        const auto whole = cpu::make_cpu_backend(1);
        whole->load(program, cache, kMaxTokens);
        const std::vector<float> expected = run(*whole, program, tokens, tokens.size());
        const std::vector<float> guesses = run_branch(*whole, program, tokens, 37);
        std::vector<double> shares(1 + seed, 1);
        shares.back() = seed;
        const auto errors = with_followers(
            shares.size(), shares,
            [&](Communicator &communicator) {
                const auto device = cpu::make_cpu_backend(1);
                follow(*device, communicator, program, shares);
            },
            [&](Backend &leader) {
                leader.load(program, cache, kMaxTokens);
                CHECK(same(run(leader, program, tokens, tokens.size()), expected));
                CHECK(same(run_branch(leader, program, tokens, 37), guesses));
                CHECK(same(run(leader, program, tokens, 7), expected));
                const std::atomic<bool> cancel = true;
                Batch cancelled{tokens, {}, {}, {}};
                cancelled.cancel = &cancel;
                CHECK(!leader.execute(cancelled, {}));
                // A block that is saved, and restored after it was overwritten.
                std::vector<std::byte> block(cache_block_bytes(program, 0, cache.k, cache.v));
                leader.read_block(0, kBlocks - 1, block);
                run(leader, program, random_tokens(32, seed + 1), 32);
                leader.write_block(0, kBlocks - 1, block);
                const std::vector<float> tail = run(leader, program, std::span(tokens).last(8), 3, 32);
                CHECK(
                    same(tail, {expected.end() - static_cast<std::ptrdiff_t>(tail.size()), expected.end()}));
                leader.load(program, cache, kMaxTokens);  // a second time
                CHECK(same(run(leader, program, tokens, 13), expected));
            });
        for (const std::string &error : errors) CHECK(error == "");
    }
}

TEST_CASE("group: every rank selects tokens by the masks of the leader, and a row is read on demand") {
    const TinyProgram tiny(shape_of(2), 2);
    const Program &program = tiny.program();
    constexpr size_t kVocab = 150, kRows = 3, kCount = 70;
    const std::vector<int32_t> tokens = random_tokens(5, 2), positions = {0, 1, 2, 3, 4}, rows = {2, 3, 4};
    const CacheConfig cache{{kBlocks}};
    const auto whole = cpu::make_cpu_backend(1);
    whole->load(program, cache, kMaxTokens);
    const std::vector<float> logits = run(*whole, program, tokens, tokens.size());
    const auto row_of = [&](size_t row) { return std::span(logits).subspan((row + 2) * kVocab, kVocab); };
    const std::vector<uint64_t> odd(3, 0xaaaaaaaaaaaaaaaa), one = {0, 0, 2};
    const std::vector<TokenMask> masks = {odd, {}, one};
    const std::vector<double> shares = {2, 1, 1};
    const auto errors = with_followers(
        3, shares,
        [&](Communicator &communicator) {
            const auto device = cpu::make_cpu_backend(1);
            follow(*device, communicator, program, shares);
        },
        [&](Backend &leader) {
            CHECK(leader.most_candidates() == 0);
            leader.load(program, cache, kMaxTokens);
            REQUIRE(leader.most_candidates() == kMostSelected);
            const std::vector<BlockId> table = {2};
            const SequenceSpan span{0, 5, 0, {table}};
            std::vector<TopLogit> found(kRows * kCount), expected(kCount);
            std::vector<ExpSum> sums(kRows);
            const Batch batch{tokens, positions, {&span, 1}, rows, nullptr, 0, masks};
            REQUIRE(leader.execute(batch, kCount, found, sums));
            for (size_t row = 0; row < kRows; ++row) {
                select_candidates(row_of(row), masks[row], expected);
                for (size_t i = 0; i < kCount; ++i) {
                    CHECK(found[row * kCount + i].token == expected[i].token);
                    CHECK(found[row * kCount + i].logit == expected[i].logit);
                }
                CHECK(sums[row] == sum_of_exp(row_of(row), masks[row]));
            }
            std::vector<float> read(kVocab);
            leader.read_logits(1, read);
            CHECK(std::ranges::equal(read, row_of(1)));
        });
    for (const std::string &error : errors) CHECK(error == "");
}

TEST_CASE("group: a follower with another program, or other parts of it, is named") {
    const TinyProgram tiny(shape_of(1), 1), other(shape_of(2), 2);
    Program parts = tiny.program();
    parts.parts = {{parts.steps.size() - 1, {}, {std::get<Logits>(parts.steps.back()).in}},
                   {parts.steps.size(), {}, {}}};
    const std::vector<double> shares(2, 1);
    const std::string expected =
        "rank 1: this process has opened another model, or has other options, than rank 0";
    for (const Program *program : {&other.program(), static_cast<const Program *>(&parts)}) {
        const auto errors = with_followers(
            2, shares,
            [&](Communicator &communicator) {
                const auto device = cpu::make_cpu_backend(1);
                follow(*device, communicator, *program, shares);
            },
            [&](Backend &leader) {
                CHECK(error_of([&] { leader.load(tiny.program(), {{kBlocks}}, kMaxTokens); }) == expected);
            });
        CHECK(errors[1].find("another model") != std::string::npos);
    }
}

TEST_CASE("group: a follower whose device fails is named, and all end") {
    const TinyProgram tiny(shape_of(1), 1);
    const std::vector<double> shares(3, 1);
    std::atomic<bool> armed = false;
    const std::vector<int32_t> tokens = random_tokens(4, 1);
    const auto errors = with_followers(
        3, shares,
        [&](Communicator &communicator) {
            std::unique_ptr<Backend> device = cpu::make_cpu_backend(1);
            if (communicator.rank() == 2)
                device = std::make_unique<tests::FailingBackend>(std::move(device), armed);
            follow(*device, communicator, tiny.program(), shares);
        },
        [&](Backend &leader) {
            leader.load(tiny.program(), {{kBlocks}}, kMaxTokens);
            run(leader, tiny.program(), tokens, 4);
            armed = true;
            const std::vector<BlockId> table{0};
            const SequenceSpan span{0, 4, 0, {table}};
            CHECK(error_of([&] {
                      leader.execute({tokens, tokens, {&span, 1}, {}}, {});
                  }) == "rank 2: the device is lost");
        });
    CHECK(errors[1] == "rank 2: the device is lost");
    CHECK(errors[2] == "the device is lost");
}
