#include "engine/decode/scheduler.h"

#include <doctest/doctest.h>

#include <list>
#include <map>
#include <random>

#include "engine/decode/answer_batch.h"
#include "engine/decode/error.h"
#include "engine/decode/generator.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/tiny_program.h"
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

AnswerBatch::Job random_job(std::mt19937 &rng, uint64_t key, int32_t context, int32_t vocab) {
    SamplingOptions how;
    how.temperature = rng() % 2 ? 0.0f : 1.5f;
    how.repeat_penalty = rng() % 3 ? 1.0f : 1.2f;
    how.seed = rng();
    GenerationOptions options;
    options.max_tokens = static_cast<int64_t>(rng() % static_cast<size_t>(context));
    options.ignore_end = rng() % 4 != 0;
    if (rng() % 8 == 0) options.stops = {std::string(1, static_cast<char>('!' + rng() % kVocab))};
    if (rng() % 3 == 0) {
        options.shift_keeping = rng() % static_cast<size_t>(context / 2);
        options.max_tokens *= 3;
    }
    const size_t most = static_cast<size_t>(rng() % 4 == 0 ? context : context / 4);
    const size_t length = 1 + rng() % most;
    return {key, random_tokens(rng, length, static_cast<uint32_t>(vocab)), Sampler(how, vocab), options};
}

using Results = std::map<uint64_t, AnswerBatch::Finished>;

void check_equal(const AnswerBatch::Finished &a, const AnswerBatch::Finished &b) {
    CHECK(a.text == b.text);
    CHECK(a.tokens == b.tokens);
    CHECK(a.reason == b.reason);
    CHECK(a.context_full == b.context_full);
    CHECK(a.error == b.error);
    CHECK(a.forgotten == b.forgotten);
}

// One after another, in chunks of the whole prompt.
Results alone(Executor &executor, const std::vector<AnswerBatch::Job> &jobs) {
    Results results;
    for (const AnswerBatch::Job &job : jobs) {
        AnswerBatch batch(executor, toy_letters(), 1);
        batch.submit(job);
        while (batch.unfinished() > 0) REQUIRE(batch.step());
        for (AnswerBatch::Finished &f : batch.take_finished()) results.emplace(f.key, std::move(f));
    }
    return results;
}

// Jobs arrive at random times; now and then one is cancelled and comes again.
Results together(Executor &executor, const std::vector<AnswerBatch::Job> &jobs, int32_t parallel,
                 std::mt19937 &rng, SchedulerCounts *counts = nullptr) {
    Results results;
    AnswerBatch batch(executor, toy_letters(), parallel);
    size_t next = 0;
    while (next < jobs.size() || batch.unfinished() > 0) {
        while (next < jobs.size() && (batch.unfinished() == 0 || rng() % 3 == 0)) batch.submit(jobs[next++]);
        if (next > 0 && rng() % 40 == 0) {
            const AnswerBatch::Job &job = jobs[rng() % next];
            if (batch.cancel(job.key)) batch.submit(job);
        }
        REQUIRE(batch.step());
        for (AnswerBatch::Finished &f : batch.take_finished()) {
            CHECK_FALSE(results.contains(f.key));
            results.emplace(f.key, std::move(f));
        }
    }
    if (counts) *counts = batch.schedule();
    return results;
}

}  // namespace

TEST_CASE("scheduler: random schedules over a small pool give every answer as it is alone") {
    int64_t preemptions = 0, forgotten = 0;
    for (uint32_t seed = 0; seed < 60; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        const int32_t context = 40 + static_cast<int32_t>(rng() % 200);
        std::vector<AnswerBatch::Job> jobs;
        for (uint64_t key = 0; key < 12; ++key) jobs.push_back(random_job(rng, key, context, kVocab));
        ToyRig calm({.context = context}), crowded({.context = context,
                                                    .batch = 1 + static_cast<int32_t>(rng() % 50),
                                                    .sequences = 8,
                                                    .cells = context + static_cast<int32_t>(rng() % 100)},
                                                   kVocab, seed % 3 == 0);
        const Results expected = alone(calm.executor, jobs);
        const FreeBlocks free = crowded.executor.free_blocks();
        SchedulerCounts counts;
        const Results got =
            together(crowded.executor, jobs, 1 + static_cast<int32_t>(rng() % 8), rng, &counts);
        REQUIRE(got.size() == jobs.size());
        for (const auto &[key, finished] : expected) {
            check_equal(got.at(key), finished);
            forgotten += finished.forgotten;
        }
        preemptions += counts.preemptions;
        CHECK(crowded.executor.free_blocks() == free);  // nothing is held
    }
    CHECK(preemptions > 20);  // the pools were small enough
    CHECK(forgotten > 1000);  // and so were the contexts
}

TEST_CASE(
    "scheduler: answers that outgrow the context forget what the generator would, and have words of their "
    "own") {
    std::mt19937 rng(5);
    for (const size_t keeping : {size_t{0}, size_t{7}, size_t{30}, size_t{39}}) {
        CAPTURE(keeping);
        ToyRig rig({.context = 40}), other({.context = 40});
        AnswerBatch::Job job = random_job(rng, 1, 40, kVocab);
        job.prompt = random_tokens(rng, 31, kVocab);
        job.options = {.max_tokens = 150, .ignore_end = true, .shift_keeping = keeping};
        Session session(rig.executor);
        Sampler sampler = job.sampler;
        Generator generator(session, sampler, toy_letters(), job.options);
        generator.start(job.prompt);
        std::string text;
        while (const auto piece = generator.next()) text += *piece;
        const AnswerBatch::Finished batched = alone(other.executor, {job}).at(1);
        CHECK(batched.text == text);
        CHECK(batched.tokens == generator.tokens());
        CHECK(batched.forgotten == generator.forgotten());
        CHECK(batched.context_full == generator.context_full());
        CHECK((batched.forgotten > 0) == (keeping < 39));
        job.vocabulary = {[](TokenId) { return std::string("word "); }, [](TokenId) { return false; }};
        CHECK(alone(other.executor, {job}).at(1).text.starts_with("word word "));
    }
}

TEST_CASE("scheduler: on the CPU, tokens are the same alone, in any batch, chunk and preemption") {
    using namespace runnel::tests;
    int64_t preemptions = 0;
    for (uint32_t seed = 0; seed < 4; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        const TinyProgram tiny({.layers = 2,
                                .width = 64,
                                .feed_forward = 96,
                                .vocab = kVocab,
                                .type = seed % 2 ? runnel::gguf::Type::Q8_0 : runnel::gguf::Type::F32},
                               seed);
        const int32_t context = 100;
        std::vector<AnswerBatch::Job> jobs;
        for (uint64_t key = 0; key < 10; ++key) jobs.push_back(random_job(rng, key, context, kVocab));
        Executor calm(kernels::cpu::make_cpu_backend(1), tiny.program(), {.context = context});
        Executor crowded(kernels::cpu::make_cpu_backend(1), tiny.program(),
                         {.context = context,
                          .batch = 3 + static_cast<int32_t>(rng() % 60),
                          .sequences = 8,
                          .cells = 160});
        const Results expected = alone(calm, jobs);
        SchedulerCounts counts;
        const Results got = together(crowded, jobs, 2 + static_cast<int32_t>(rng() % 6), rng, &counts);
        REQUIRE(got.size() == jobs.size());
        for (const auto &[key, finished] : expected) check_equal(got.at(key), finished);
        preemptions += counts.preemptions;
    }
    CHECK(preemptions > 0);
}

TEST_CASE("scheduler: a sequence may bring several tokens and get several rows") {
    for (uint32_t seed = 0; seed < 40; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        ToyRig rig(
            {.context = 300, .batch = 8 + static_cast<int32_t>(rng() % 20), .sequences = 4, .cells = 400},
            kVocab, seed % 2 == 0);
        Scheduler scheduler(rig.executor, {.parallel = 4});
        std::list<Session> sessions;
        std::map<const Session *, size_t> rows;
        const auto more = [&](Session &s) {
            const size_t count = std::min<size_t>(1 + rng() % 8, s.room());
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
            const std::vector<Session *> ready(scheduler.ready().begin(), scheduler.ready().end());
            // A recurrent sequence that was cut replays tokens first, which may fill a step.
            if (seed % 2 != 0) CHECK(!ready.empty());
            answered += ready.size();
            for (Session *s : ready) {
                REQUIRE(s->logits().size() == rows[s] * kVocab);
                const std::vector<TokenId> all = s->tokens();
                for (size_t r = 0; r < rows[s]; ++r)
                    check_logits(s->logits().subspan(r * kVocab, kVocab),
                                 {all.begin(), all.end() - static_cast<std::ptrdiff_t>(rows[s] - 1 - r)});
                if (rng() % 3 == 0) s->truncate(s->tokens().size() - rng() % rows[s]);  // rejected drafts
                if (s->room() < 8) s->truncate(10);
                more(*s);
            }
        }
        CHECK(answered > 60);
    }
}

TEST_CASE("scheduler: a long prompt comes in chunks beside running answers, which get a token every step") {
    ToyRig rig({.context = 200, .batch = 16, .sequences = 3});
    Scheduler scheduler(rig.executor, {.parallel = 3});
    std::mt19937 rng(1);
    Session one(rig.executor), two(rig.executor), three(rig.executor);
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
    CHECK(steps == 8);  // 14 of its tokens a step
    CHECK(rig.backend->records.back().tokens == 2 + 100 - 7 * 14);
}

TEST_CASE("scheduler: sequences wait until the pool has blocks for them, first come first served") {
    ToyRig rig({.context = 128, .batch = 128, .sequences = 1, .cells = 256});  // 8 blocks
    Scheduler scheduler(rig.executor, {.parallel = 8});
    std::mt19937 rng(1);
    std::list<Session> sessions;
    for (int i = 0; i < 3; ++i) {
        sessions.emplace_back(rig.executor);
        sessions.back().append(random_tokens(rng, 90));  // 3 blocks, and one to grow
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

TEST_CASE("scheduler: a stop changes nothing, and the next step goes on") {
    ToyRig rig({.context = 64, .batch = 16, .sequences = 2});
    Scheduler scheduler(rig.executor, {.parallel = 2});
    std::mt19937 rng(3);
    Session one(rig.executor);
    one.append(random_tokens(rng, 40));
    scheduler.add(one);
    REQUIRE(scheduler.step());
    StopRequest stop;
    rig.backend->on_execute = [&](const kernels::Batch &) { stop.request(StopRequest::Reason::Interrupt); };
    CHECK_FALSE(scheduler.step(&stop));
    CHECK(one.pending() == 24);
    CHECK(one.due());
    rig.backend->on_execute = nullptr;
    CHECK_FALSE(scheduler.step(&stop));
    REQUIRE(scheduler.step());
    REQUIRE(scheduler.step());
    check_logits(one.logits(), one.tokens());
}

TEST_CASE("scheduler: a pool that others hold is an error, not an endless loop") {
    ToyRig rig({.context = 64, .batch = 64, .sequences = 1});
    Session other(rig.executor);
    CHECK(other.feed(std::vector<TokenId>(40, 1)));
    Scheduler scheduler(rig.executor, {.parallel = 1});
    Session one(rig.executor);
    one.append(std::vector<TokenId>(10, 2));
    scheduler.add(one);
    CHECK_THROWS_WITH_AS(scheduler.step(), doctest::Contains("cache is full"), DecodeError);
}

TEST_CASE("answer batch: a prompt that does not fit is an error of its own") {
    ToyRig rig({.context = 32, .batch = 8});
    AnswerBatch batch(rig.executor, toy_letters(), 2);
    std::mt19937 rng(1);
    SamplingOptions greedy;
    greedy.temperature = 0;
    batch.submit({1, random_tokens(rng, 33), Sampler(greedy, kVocab), {}});
    batch.submit({2, random_tokens(rng, 3), Sampler(greedy, kVocab), {.max_tokens = 2, .ignore_end = true}});
    while (batch.unfinished() > 0) REQUIRE(batch.step());
    const auto finished = batch.take_finished();
    REQUIRE(finished.size() == 2);
    CHECK(finished[0].key == 1);
    CHECK(finished[0].error.find("33 tokens") != std::string::npos);
    CHECK(finished[1].error == "");
    CHECK(finished[1].tokens.size() == 2);
    CHECK(batch.counts().failed == 1);
}

TEST_CASE("answer batch: logits that are not finite end the answer that has them") {
    ToyRig rig({.context = 64, .batch = 16, .sequences = 2});
    rig.backend->model = [](const std::vector<int32_t> &prefix, std::span<float> logits) {
        if (prefix[0] == 7) logits[3] = std::numeric_limits<float>::quiet_NaN();
    };
    AnswerBatch batch(rig.executor, toy_letters(), 2);
    const GenerationOptions three{.max_tokens = 3, .ignore_end = true};
    batch.submit({1, {7, 1}, Sampler({}, kVocab), three});
    batch.submit({2, {8, 1}, Sampler({}, kVocab), three});
    while (batch.unfinished() > 0) REQUIRE(batch.step());
    for (const auto &f : batch.take_finished()) {
        CHECK(f.error.empty() == (f.key == 2));
        if (f.key == 2) CHECK(f.tokens.size() == 3);
    }
}

TEST_CASE("scheduler: a header that all prompts share is computed once") {
    auto toy = std::make_unique<ToyBackend>();
    Executor executor(std::move(toy), toy_program(50), {.context = 400, .batch = 64, .sequences = 8});
    std::vector<TokenId> header(256);
    for (size_t i = 0; i < header.size(); ++i) header[i] = static_cast<TokenId>(i * 7 % 50);
    std::deque<Session> sessions;
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
        const std::vector<Session *> ready(scheduler.ready().begin(), scheduler.ready().end());
        for (Session *session : ready) {
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
