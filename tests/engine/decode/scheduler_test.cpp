#include "engine/decode/scheduler.h"

#include <doctest/doctest.h>

#include <list>
#include <map>
#include <random>

#include "engine/decode/error.h"
#include "engine/decode/single_sequence.h"
#include "tests/support/toy_rig.h"

using namespace runnel::decode;
using namespace runnel::testing;
namespace kernels = runnel::kernels;

namespace {

constexpr int32_t kVocab = kToyVocab;

void check_logits(std::span<const float> row, const std::vector<TokenId> &prefix) {
    REQUIRE(row.size() == kVocab);
    const uint64_t hash = hash_tokens(prefix);
    for (int32_t id = 0; id < kVocab; ++id) REQUIRE(row[static_cast<size_t>(id)] == toy_logit(hash, id));
}

}  // namespace

TEST_CASE("scheduler: a sequence may bring several tokens and get several rows") {
    for (uint32_t seed = 0; seed < 40; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        ToyRig rig(
            {.context = 300, .batch = 8 + static_cast<int32_t>(rng() % 20), .sequences = 4, .cells = 400},
            kVocab, seed % 2 == 0);
        Scheduler scheduler(rig.executor, {.parallel = 4});
        std::list<ScheduledSequence> sessions;
        std::map<const ScheduledSequence *, size_t> rows;
        const auto more = [&](ScheduledSequence &s) {
            const size_t count = std::min<size_t>(1 + rng() % 8, s.sequence().free_cells());
            rows[&s] = 1 + rng() % count;
            s.append(random_tokens(rng, count), static_cast<int32_t>(rows[&s]));
        };
        for (int i = 0; i < 4; ++i) {
            sessions.emplace_back(rig.executor);
            more(sessions.back());
            scheduler.add(sessions.back());
        }
        size_t answered = 0;
        for (int step = 0; step < 60; ++step) {
            REQUIRE(scheduler.step());
            const std::vector<ScheduledSequence *> ready(scheduler.ready().begin(), scheduler.ready().end());
            // A recurrent sequence that was truncated first replays tokens, which may fill a step.
            if (seed % 2 != 0) CHECK(!ready.empty());
            answered += ready.size();
            for (ScheduledSequence *s : ready) {
                REQUIRE(s->logits().size() == rows[s] * kVocab);
                const std::vector<TokenId> all = s->tokens();
                for (size_t r = 0; r < rows[s]; ++r)
                    check_logits(s->logits().subspan(r * kVocab, kVocab),
                                 {all.begin(), all.end() - static_cast<std::ptrdiff_t>(rows[s] - 1 - r)});
                if (rng() % 3 == 0) s->truncate(s->tokens().size() - rng() % rows[s]);  // rejected drafts
                if (s->sequence().free_cells() < 8) s->truncate(10);
                more(*s);
            }
        }
        CHECK(answered > 60);
    }
}

TEST_CASE("scheduler: a long prompt is computed in chunks while running answers get a token every step") {
    ToyRig rig({.context = 200, .batch = 16, .sequences = 3});
    Scheduler scheduler(rig.executor, {.parallel = 3});
    std::mt19937 rng(1);
    ScheduledSequence one(rig.executor), two(rig.executor), three(rig.executor);
    one.append(random_tokens(rng, 4));
    two.append(random_tokens(rng, 4));
    scheduler.add(one);
    scheduler.add(two);
    REQUIRE(scheduler.step());
    CHECK(scheduler.ready().size() == 2);
    three.append(random_tokens(rng, 100));
    scheduler.add(three);
    int steps = 0;
    for (; !three.has_logits(); ++steps) {
        one.append(random_tokens(rng, 1));
        two.append(random_tokens(rng, 1));
        REQUIRE(scheduler.step());
        CHECK(one.has_logits());
        CHECK(two.has_logits());
    }
    CHECK(steps == 8);  // 14 tokens of the prompt per step
    CHECK(rig.backend->records.back().tokens == 2 + 100 - 7 * 14);
}

TEST_CASE("scheduler: sequences wait until the pool has blocks for them, first come first served") {
    ToyRig rig({.context = 128, .batch = 128, .sequences = 1, .cells = 256});  // 8 blocks
    Scheduler scheduler(rig.executor, {.parallel = 8});
    std::mt19937 rng(1);
    std::list<ScheduledSequence> sessions;
    for (int i = 0; i < 3; ++i) {
        sessions.emplace_back(rig.executor);
        sessions.back().append(random_tokens(rng, 90));  // 3 blocks, and one more to grow
        scheduler.add(sessions.back());
    }
    REQUIRE(scheduler.step());
    CHECK(scheduler.running() == 2);
    CHECK(scheduler.waiting() == 1);
    scheduler.remove(sessions.front());
    sessions.pop_front();
    while (!sessions.back().has_logits()) REQUIRE(scheduler.step());
    check_logits(sessions.back().logits(), sessions.back().tokens());
    CHECK(scheduler.counts().preemptions == 0);
}

TEST_CASE("scheduler: a stop changes nothing, and the next step continues") {
    ToyRig rig({.context = 64, .batch = 16, .sequences = 2});
    Scheduler scheduler(rig.executor, {.parallel = 2});
    std::mt19937 rng(3);
    ScheduledSequence one(rig.executor);
    one.append(random_tokens(rng, 40));
    scheduler.add(one);
    REQUIRE(scheduler.step());
    StopRequest stop;
    rig.backend->on_execute = [&](const kernels::Batch &) { stop.request(StopRequest::Reason::Interrupt); };
    CHECK_FALSE(scheduler.step(&stop));
    CHECK(one.sequence().pending() == 24);
    CHECK(one.due());
    rig.backend->on_execute = nullptr;
    CHECK_FALSE(scheduler.step(&stop));
    REQUIRE(scheduler.step());
    REQUIRE(scheduler.step());
    check_logits(one.logits(), one.tokens());
}

TEST_CASE("scheduler: a pool that others occupy is an error, not an endless loop") {
    ToyRig rig({.context = 64, .batch = 64, .sequences = 1});
    SingleSequence other(rig.executor);
    CHECK(other.feed(std::vector<TokenId>(40, 1)));
    Scheduler scheduler(rig.executor, {.parallel = 1});
    ScheduledSequence one(rig.executor);
    one.append(std::vector<TokenId>(10, 2));
    scheduler.add(one);
    CHECK_THROWS_WITH_AS(scheduler.step(), doctest::Contains("cache is full"), DecodeError);
}

TEST_CASE("scheduler: a header that all prompts share is computed once") {
    auto toy = std::make_unique<ToyBackend>();
    Executor executor(std::move(toy), toy_program(50), {.context = 400, .batch = 64, .sequences = 8});
    std::vector<TokenId> header(256);
    for (size_t i = 0; i < header.size(); ++i) header[i] = static_cast<TokenId>(i * 7 % 50);
    std::deque<ScheduledSequence> sessions;
    Scheduler scheduler(executor, {.parallel = 8});
    for (TokenId row = 0; row < 20; ++row) {
        std::vector<TokenId> prompt = header;
        prompt.insert(prompt.end(), {row, 3, row});
        sessions.emplace_back(executor).append(prompt);
        scheduler.add(sessions.back());
    }
    size_t done = 0;
    while (done < sessions.size()) {
        REQUIRE(scheduler.step());
        const std::vector<ScheduledSequence *> ready(scheduler.ready().begin(), scheduler.ready().end());
        for (ScheduledSequence *session : ready) {
            const uint64_t hash = hash_tokens(session->tokens());
            for (int32_t id = 0; id < 50; ++id)
                REQUIRE(session->logits()[static_cast<size_t>(id)] == toy_logit(hash, id));
            scheduler.remove(*session);
            ++done;
        }
    }
    CHECK(scheduler.counts().tokens == 256 + 20 * 3);
    CHECK(executor.cache().statistics().reused_tokens == 19 * 256);
}
