#include "engine/decode/single_sequence.h"

#include <doctest/doctest.h>

#include <random>
#include <thread>

#include "engine/decode/cache_plan.h"
#include "engine/decode/error.h"
#include "tests/support/toy_rig.h"

using namespace runnel::decode;
using namespace runnel::testing;
namespace kernels = runnel::kernels;

namespace {

constexpr int32_t kVocab = kToyVocab;

void check_logits(std::span<const float> logits, const std::vector<TokenId> &prefix) {
    REQUIRE(logits.size() == kVocab);
    const uint64_t hash = hash_tokens(prefix);
    for (int32_t id = 0; id < kVocab; ++id) REQUIRE(logits[static_cast<size_t>(id)] == toy_logit(hash, id));
}

}  // namespace

TEST_CASE("sequence: after any feeding, truncating and reusing, the logits are those of the tokens") {
    for (uint32_t seed = 0; seed < 60; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        ToyRig rig({.context = 200, .batch = 1 + static_cast<int32_t>(rng() % 70), .sequences = 2}, kVocab,
                   seed % 3 == 0);
        SingleSequence session(rig.executor), other(rig.executor);
        std::vector<TokenId> expected;
        for (int step = 0; step < 20; ++step) {
            const auto more = random_tokens(rng, rng() % 60);
            if (rng() % 3 == 0) {
                const size_t keep = rng() % (expected.size() + 1);
                session.truncate(keep);
                expected.resize(keep);
            }
            if (expected.size() + more.size() > 200) continue;
            if (rng() % 3 == 0 && other.sequence().free_cells() > 5)
                CHECK(other.feed(random_tokens(rng, 5)));  // shares the pools
            CHECK(session.feed(more));
            expected.insert(expected.end(), more.begin(), more.end());
            CHECK(session.tokens() == expected);
            if (!more.empty()) check_logits(session.logits(), expected);
        }
    }
}

TEST_CASE("sequence: a prompt is fed in chunks, and only the last one returns logits") {
    ToyRig rig({.context = 100, .batch = 16});
    SingleSequence session(rig.executor);
    std::mt19937 rng(1);
    CHECK(session.feed(random_tokens(rng, 40)));
    REQUIRE(rig.backend->records.size() == 3);
    CHECK(rig.backend->records[0].tokens == 16);
    CHECK(rig.backend->records[0].rows == 0);
    CHECK(rig.backend->records[2].tokens == 8);
    CHECK(rig.backend->records[2].rows == 1);
}

TEST_CASE("sequence: reuse keeps the common prefix but the last token") {
    ToyRig rig({.context = 100});
    SingleSequence session(rig.executor);
    CHECK(session.feed(std::vector<TokenId>{1, 2, 3, 4, 5}));
    CHECK(session.reuse(std::vector<TokenId>{1, 2, 3, 9, 9, 9}) == 3);
    CHECK(session.tokens() == std::vector<TokenId>{1, 2, 3});
    CHECK(session.reuse(std::vector<TokenId>{1, 2, 3}) == 2);
    CHECK(session.reuse(std::vector<TokenId>{7}) == 0);
    CHECK(session.tokens().empty());
}

TEST_CASE("sequence: tokens that do not fit the context are refused with the numbers, and nothing changes") {
    ToyRig rig({.context = 64, .batch = 16});
    SingleSequence session(rig.executor);
    CHECK(session.feed(std::vector<TokenId>(60, 1)));
    CHECK(session.sequence().free_cells() == 4);
    CHECK_THROWS_WITH_AS(session.feed(std::vector<TokenId>(5, 1)),
                         doctest::Contains("65 tokens, but the context holds 64"), DecodeError);
    CHECK(session.tokens().size() == 60);
    CHECK(session.feed(std::vector<TokenId>(4, 1)));
    CHECK(session.sequence().free_cells() == 0);
}

TEST_CASE("sequence: a stop in the middle of a prompt keeps the chunks before it") {
    ToyRig rig({.context = 100, .batch = 10});
    SingleSequence session(rig.executor);
    StopRequest stop;
    rig.backend->on_execute = [&](const kernels::Batch &batch) {
        if (batch.positions[0] == 20) stop.request(StopRequest::Reason::Interrupt);
    };
    CHECK_FALSE(session.feed(std::vector<TokenId>(50, 3), &stop));
    CHECK(session.tokens().size() == 20);
    CHECK_FALSE(session.has_logits());
    rig.backend->on_execute = nullptr;
    stop.reset();
    CHECK(session.feed(std::vector<TokenId>(5, 4), &stop));
    std::vector<TokenId> all(20, 3);
    all.insert(all.end(), 5, 4);
    check_logits(session.logits(), all);
}

TEST_CASE("executor: sequences of one step do not see each other, and rows come in their order") {
    ToyRig rig({.context = 64, .batch = 64, .sequences = 3});
    std::vector<SequenceCache> caches;
    for (int i = 0; i < 3; ++i) caches.push_back(rig.executor.new_sequence());
    std::vector<float> logits;
    const std::vector<TokenId> a = {1, 2, 3}, b = {4}, c = {5, 6}, b2 = {7, 8, 9};
    const StepInput first[] = {{&caches[0], a, 0}, {&caches[1], b, 1}};
    REQUIRE(rig.executor.step(first, logits));
    check_logits(logits, {4});
    const StepInput second[] = {{&caches[1], b2, 3}, {&caches[2], c, 1}};
    REQUIRE(rig.executor.step(second, logits));
    REQUIRE(logits.size() == 4 * kVocab);
    const auto row = [&](size_t r) { return std::span(logits).subspan(r * kVocab, kVocab); };
    check_logits(row(0), {4, 7});
    check_logits(row(1), {4, 7, 8});
    check_logits(row(2), {4, 7, 8, 9});
    check_logits(row(3), {5, 6});
    CHECK(caches[0].length() == 3);
    CHECK(caches[1].length() == 4);
}

TEST_CASE("executor: a failed step leaves the caches as they were") {
    ToyRig rig({.context = 64, .batch = 32, .sequences = 1});
    SequenceCache one = rig.executor.new_sequence(), two = rig.executor.new_sequence();
    std::vector<float> logits;
    const std::vector<TokenId> many(32, 1), bad = {1, 999};
    const StepInput fill[] = {{&one, many, 1}};
    REQUIRE(rig.executor.step(fill, logits));
    const StepInput unknown[] = {{&one, bad, 1}};
    CHECK_THROWS_WITH_AS(rig.executor.step(unknown, logits), doctest::Contains("token 999"), DecodeError);
    CHECK(one.length() == 32);
    rig.backend->on_execute = [](const kernels::Batch &) {
        throw kernels::BackendError(kernels::BackendError::Kind::Failed, "broken");
    };
    const std::vector<TokenId> few(8, 2);
    const StepInput pair[] = {{&one, few, 1}, {&two, few, 1}};
    // One block is left, two are needed.
    CHECK_THROWS_WITH_AS(rig.executor.step(pair, logits), doctest::Contains("cache is full"), DecodeError);
    CHECK(one.length() == 32);
    CHECK(two.length() == 0);
    const StepInput single[] = {{&two, few, 1}};
    CHECK_THROWS_AS(rig.executor.step(single, logits), kernels::BackendError);
    CHECK(two.length() == 0);
    rig.backend->on_execute = nullptr;
    CHECK(rig.executor.step(single, logits));
}

TEST_CASE("context: a context that fits is planned, one that does not is refused with the reason") {
    const kernels::Program program = toy_program(kVocab);
    const size_t per_block = cache_bytes(program, 1);
    CHECK(per_block == 2 * 32 * 16 * 2);
    CHECK(cache_bytes(program, 33) == 2 * per_block);
    const auto cpu = kernels::cpu_device();
    size_t free = size_t{1} << 33;
    const auto plan_for = [&](const ContextRequest &request) {
        return plan_context(program, *cpu, free, request);
    };
    CHECK(plan_for({.own = 4096}).context == 4096);
    CHECK_FALSE(plan_for({.own = 4096}).reduced);
    CHECK(plan_for({.own = 4096, .asked = 100}).context == 100);
    // Several sequences take whole blocks, so that all of them are as long as the context.
    CHECK(plan_for({.own = 4096, .asked = 37, .sequences = 4}).cells == 4 * 64);
    CHECK(plan_for({.own = 4096, .asked = 37, .sequences = 4}).context == 37);
    free = 1 << 20;  // 1/8 of it for the cache: 64 blocks
    const ContextPlan plan = plan_for({.own = 1 << 20});
    CHECK(plan.reduced);
    CHECK(plan.context == 64 * 32);
    CHECK(plan.cache_bytes <= free / 8);
    CHECK_THROWS_WITH_AS(plan_for({.own = 1, .asked = 1 << 20}), doctest::Contains("1048576 tokens"),
                         DecodeError);
    CHECK_THROWS_AS(plan_for({.own = 1, .asked = int64_t{1} << 40}), DecodeError);
    free = 1000;
    CHECK_THROWS_AS(plan_for({.own = 4096}), DecodeError);
}

TEST_CASE("deadline: stops a computation once, and not after it was cancelled") {
    StopRequest stop;
    { const DeadlineTimer timer(stop, std::chrono::hours(1)); }
    CHECK_FALSE(stop.requested());
    {
        const DeadlineTimer timer(stop, std::chrono::milliseconds(1));
        for (int i = 0; i < 60'000 && !stop.requested(); ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    CHECK(stop.reason() == StopRequest::Reason::Deadline);
    stop.reset();
    const DeadlineTimer at_once(stop, std::chrono::seconds(0));
    CHECK(stop.reason() == StopRequest::Reason::Deadline);
}

TEST_CASE("stop request: an interrupt counts, before and after a deadline") {
    StopRequest stop;
    stop.request(StopRequest::Reason::Deadline);
    stop.request(StopRequest::Reason::Interrupt);
    CHECK(stop.reason() == StopRequest::Reason::Interrupt);
    stop.request(StopRequest::Reason::Deadline);
    CHECK(stop.reason() == StopRequest::Reason::Interrupt);
}
