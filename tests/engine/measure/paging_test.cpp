// Replays of small traces, counted by hand, and the watch of a real cache against its block tables.
#include "engine/measure/paging.h"

#include <doctest/doctest.h>

#include <random>
#include <set>

#include "engine/decode/engine.h"
#include "engine/decode/scheduler.h"
#include "engine/measure/cache_watch.h"
#include "tests/support/demo_model.h"

namespace runnel::measure {
namespace {

TEST_CASE("paging: a hand-computed trace of three requests") {
    // A memory of 16 cells, contexts of 8, pages of 4; two requests fit as contexts.
    const std::vector<PagingRequest> trace = {{3, 2, 6}, {2, 1, 3}, {4, 2, 7}};
    const PagingMemory memory{.cells = 16, .context = 8, .parallel = 4, .page = 4};

    // Contexts. Step 1: A (4 cells) and B (3); C waits, nothing is free. B ends. Step 2: A (5) and C (5). A ends.
    // Step 3: C (6).
    const PagingReplay context = replay(trace, memory, Allocation::Context);
    CHECK(context.steps == 3);
    CHECK(context.running == 2 + 2 + 1);
    CHECK(context.most_running == 2);
    CHECK(context.most_held == 16);
    CHECK(context.used == 7 + 10 + 6);
    CHECK(context.internal_waste == 16 - 7 + 16 - 10 + 8 - 6);
    CHECK(context.external_waste == 0);
    CHECK(context.all == 3 * 16);

    // Limits: 6 + 3 + 7 = 16 cells: all at once. Step 1: 4 + 3 + 5 cells; B ends. Step 2: 5 + 6; both end.
    const PagingReplay limit = replay(trace, memory, Allocation::Limit);
    CHECK(limit.steps == 2);
    CHECK(limit.most_running == 3);
    CHECK(limit.used == 12 + 11);
    CHECK(limit.internal_waste == 4 + 2);
    CHECK(limit.external_waste == 0);

    // Pages: 1 + 1 + 2 pages of 4; then A and C with 2 each.
    const PagingReplay pages = replay(trace, memory, Allocation::Pages);
    CHECK(pages.steps == 2);
    CHECK(pages.most_held == 16);
    CHECK(pages.used == 12 + 11);
    CHECK(pages.internal_waste == 4 + 5);
    CHECK(pages.preemptions == 0);
}

TEST_CASE("paging: a hole between two ranges is external waste, and pages fill it") {
    // Ranges of 4, 4 and 4 in 12 cells. The second ends first; its hole and no more is free when 6 are needed.
    const std::vector<PagingRequest> trace = {{1, 3, 4}, {1, 1, 4}, {1, 3, 4}, {4, 2, 6}};
    const PagingMemory memory{.cells = 12, .context = 12, .parallel = 4, .page = 1};
    const PagingReplay limit = replay(trace, memory, Allocation::Limit);
    // Steps 1 to 3: A, C (and B in step 1); D waits with 0, 4 and 4 free cells. Steps 4 and 5: D.
    CHECK(limit.steps == 5);
    CHECK(limit.external_waste == 0 + 4 + 4);
    CHECK(limit.used == (2 + 2 + 2) + (3 + 3) + (4 + 4) + 5 + 6);
    CHECK(replay(trace, memory, Allocation::Pages).steps < 5);
    CHECK(replay(trace, memory, Allocation::Pages).internal_waste == 0);  // pages of one cell
}

TEST_CASE("paging: the newest request gives its pages back when none is left") {
    // Two requests of 2 + 4 cells in 10 cells, pages of 2. Step 1: 3 + 3 cells in 2 + 2 pages. Step 2: 4 + 4. Step 3: A
    // takes the last page; B is preempted with 4 cells. Step 4: A ends with 6. Steps 5 and 6: B has 5, then 6 cells.
    const std::vector<PagingRequest> trace = {{2, 4, 6}, {2, 4, 6}};
    const PagingReplay pages =
        replay(trace, {.cells = 10, .context = 10, .parallel = 2, .page = 2}, Allocation::Pages);
    CHECK(pages.preemptions == 1);
    CHECK(pages.steps == 6);
    CHECK(pages.used == 6 + 8 + 5 + 6 + 5 + 6);
    CHECK(pages.most_running == 2);
}

TEST_CASE("paging: equal beginnings are held once, and only while a request holds them") {
    // Pages of 2. A and B begin with the pages 1 and 2; C with page 1 alone. Each has one further token.
    const std::vector<PagingRequest> trace = {
        {4, 1, 5, 0, {1, 2}}, {5, 1, 6, 0, {1, 2}}, {3, 2, 5, 0, {1}}, {4, 1, 5, 9, {1, 2}}};
    const PagingMemory memory{.cells = 16, .context = 8, .parallel = 4, .page = 2};
    const PagingReplay shared = replay(trace, memory, Allocation::Shared);
    // Step 1: pages 1 and 2; own pages of A: 1 (5th token), B: 1 (5th and 6th), C: 1 (3rd and 4th); A and B end. Step
    // 2: C alone with 3 pages. Steps 3 to 9: nothing. Step 10, counted as the third: D with 3 pages.
    CHECK(shared.steps == 3);
    CHECK(shared.most_held == 5 * 2);
    CHECK(shared.saved == 2 * 2 + 1 * 2);
    CHECK(shared.used == (5 + 6 + 4 - 6) + 5 + 5);
    CHECK(shared.internal_waste == (10 - 9) + (6 - 5) + (6 - 5));
    CHECK(shared.waited == 0);
    using enum PageUse;
    CHECK(shared.fullest == std::vector<PageUse>{Shared, Shared, Filled, Filled, Filled});

    const PagingReplay pages = replay(trace, memory, Allocation::Pages);
    CHECK(pages.saved == 0);
    CHECK(pages.most_held == (3 + 3 + 2) * 2);
    CHECK(pages.fullest == std::vector<PageUse>(8, Filled));
}

TEST_CASE("paging: a request waits from its arrival to its first step") {
    // One at a time: A runs in steps 0 to 2, B, which arrives at step 1, in steps 3 and 4, and C in step 8.
    const std::vector<PagingRequest> trace = {{1, 3, 8}, {1, 2, 8, 1}, {1, 1, 8, 8}};
    const PagingReplay r =
        replay(trace, {.cells = 8, .context = 8, .parallel = 8, .page = 4}, Allocation::Limit);
    CHECK(r.steps == 3 + 2 + 1);
    CHECK(r.waited == 2);
    CHECK(r.external_waste == 0);  // no cell is free while B waits
    using enum PageUse;
    CHECK(r.fullest == std::vector<PageUse>{Filled, Reserved});
}

// The same with nothing remembered between steps: who holds which page is counted anew from the requests.
PagingReplay naive_shared(const std::vector<PagingRequest> &requests, const PagingMemory &memory) {
    struct One {
        size_t request;
        int64_t cells;
    };
    const auto pages = [&](int64_t cells) { return (cells + memory.page - 1) / memory.page; };
    std::vector<One> waiting, running;
    PagingReplay r;
    const int64_t all = memory.cells / memory.page;
    for (size_t i = 0; i < requests.size(); ++i)
        if (pages(requests[i].prompt + requests[i].answer) <= all) waiting.push_back({i, requests[i].prompt});
    const auto held = [&] {
        std::set<uint64_t> known;
        int64_t own = 0;
        for (const One &one : running) {
            const auto &ids = requests[one.request].beginning;
            known.insert(ids.begin(), ids.end());
            own += pages(one.cells) - static_cast<int64_t>(ids.size());
        }
        return own + static_cast<int64_t>(known.size());
    };
    int64_t now = 0;
    while (!waiting.empty() || !running.empty()) {
        if (running.empty()) now = std::max(now, requests[waiting[0].request].arrival);
        while (!waiting.empty() && running.size() < static_cast<size_t>(memory.parallel) &&
               requests[waiting[0].request].arrival <= now) {
            One next = waiting[0];
            const PagingRequest &request = requests[next.request];
            running.push_back({next.request, std::min(next.cells + 1, request.prompt + request.answer)});
            const bool fits = held() <= all;
            running.back().cells = next.cells;
            if (!fits) {
                running.pop_back();
                break;
            }
            waiting.erase(waiting.begin());
        }
        for (size_t i = 0; i < running.size(); ++i) {
            if (running[i].cells == requests[running[i].request].prompt + requests[running[i].request].answer)
                continue;
            ++running[i].cells;
            while (held() > all) {
                One newest = running.back();
                if (running.size() == i + 1) --newest.cells;
                waiting.insert(waiting.begin(), newest);
                running.pop_back();
                ++r.preemptions;
            }
        }
        ++r.steps;
        r.running += static_cast<int64_t>(running.size());
        r.most_held = std::max(r.most_held, held() * memory.page);
        int64_t without = 0, cells = 0;
        for (const One &one : running) without += pages(one.cells), cells += one.cells;
        r.saved += (without - held()) * memory.page;
        r.used += cells - (without - held()) * memory.page;
        std::erase_if(running, [&](const One &one) {
            return one.cells == requests[one.request].prompt + requests[one.request].answer;
        });
        ++now;
    }
    return r;
}

TEST_CASE("paging: shared pages as a naive count finds them") {
    for (unsigned seed = 0; seed < 300; ++seed) {
        CAPTURE(seed);
        std::mt19937 random(seed);
        const auto any = [&](int64_t low, int64_t high) {
            return low + static_cast<int64_t>(random() % static_cast<uint32_t>(high - low + 1));
        };
        const PagingMemory memory{.cells = any(20, 120),
                                  .context = 60,
                                  .parallel = static_cast<int32_t>(any(1, 6)),
                                  .page = static_cast<int32_t>(any(1, 5))};
        std::vector<PagingRequest> trace;
        int64_t arrival = 0;
        for (int64_t i = any(1, 15); i > 0; --i) {
            PagingRequest one{any(1, 25), any(0, 12), 60, arrival += any(0, 3), {}};
            const auto group = static_cast<uint64_t>(any(0, 2));
            for (int64_t page = any(0, one.prompt / memory.page); page > 0; --page)
                one.beginning.push_back(group * 100 + one.beginning.size());
            trace.push_back(std::move(one));
        }
        const PagingReplay got = replay(trace, memory, Allocation::Shared),
                           expected = naive_shared(trace, memory);
        CHECK(got.steps == expected.steps);
        CHECK(got.running == expected.running);
        CHECK(got.most_held == expected.most_held);
        CHECK(got.saved == expected.saved);
        CHECK(got.used == expected.used);
        CHECK(got.preemptions == expected.preemptions);
        CHECK(got.used + got.internal_waste + got.external_waste <= got.all);
        int64_t filled = 0;
        for (const PageUse use : got.fullest) filled += use != PageUse::Free;
        CHECK(filled * memory.page == got.most_held);
    }
}

TEST_CASE("paging: every replay of random traces ends, and its cells add up") {
    const unsigned seed = 7;
    CAPTURE(seed);
    std::mt19937 random(seed);
    for (int round = 0; round < 200; ++round) {
        CAPTURE(round);
        const auto any = [&](int64_t low, int64_t high) {
            return low + static_cast<int64_t>(random() % static_cast<uint32_t>(high - low + 1));
        };
        PagingMemory memory{.cells = any(8, 200),
                            .context = any(60, 80),
                            .parallel = static_cast<int32_t>(any(1, 9)),
                            .page = static_cast<int32_t>(any(1, 8))};
        std::vector<PagingRequest> trace;
        int64_t tokens = 0;
        for (int64_t i = any(0, 20); i > 0; --i) {
            const int64_t prompt = any(1, 20), answer = any(0, 20);
            trace.push_back({prompt, answer, any(prompt + answer, 60)});
            tokens += std::max<int64_t>(answer, 1);
        }
        for (const Allocation how : {Allocation::Context, Allocation::Limit, Allocation::Pages}) {
            const PagingReplay r = replay(trace, memory, how);
            CHECK(r.used + r.internal_waste + r.external_waste <= r.all);
            CHECK(r.internal_waste >= 0);
            CHECK(r.most_held <= memory.cells);
            CHECK(r.most_running <= memory.parallel);
            CHECK(r.all == r.steps * memory.cells);
            if (r.too_large == 0 && r.preemptions == 0) CHECK(r.running == tokens);
            if (how != Allocation::Pages) CHECK(r.preemptions == 0);
        }
    }
}

TEST_CASE("cache watch: counts what the block tables hold") {
    decode::EngineOptions options;
    options.model = testing::demo_model();
    options.threads = 1;
    options.context = 256;
    options.sequences = 3;
    decode::Engine engine(options);
    decode::Executor &executor = engine.executor();
    CacheWatch watch(executor.cache());
    std::vector<decode::ScheduledSequence> sequences;
    sequences.reserve(3);
    decode::Scheduler scheduler(executor, {.parallel = 3});
    std::vector<text::TokenId> prompt;
    for (int i = 0; i < 70; ++i) prompt.push_back(5 + i);
    // The first computes 2 full blocks and 6 cells; the others find the full ones.
    for (int i = 0; i < 3; ++i) {
        sequences.emplace_back(executor);
        sequences.back().sequence().reuse(prompt);
        sequences.back().append(std::span(prompt).subspan(sequences.back().tokens().size()));
        if (i == 0) {
            decode::Scheduler alone(executor, {});
            alone.add(sequences.back());
            while (sequences.back().sequence().pending() > 0 && alone.step()) {
            }
            alone.remove(sequences.back());
        } else {
            scheduler.add(sequences.back());
        }
    }
    while (sequences[2].sequence().pending() > 0 && scheduler.step()) {
    }
    std::vector<const cache::SequenceCache *> caches;
    std::set<cache::BlockId> distinct;
    int64_t entries = 0;
    for (const decode::ScheduledSequence &one : sequences) {
        caches.push_back(&one.sequence().cache());
        REQUIRE(caches.back()->length() == 70);
        for (const cache::BlockId block : caches.back()->table(0)) distinct.insert(block), ++entries;
    }
    watch.look(caches);
    CHECK(watch.most_held == static_cast<int32_t>(distinct.size()));
    CHECK(watch.most_held == 2 + 3);
    CHECK(watch.saved_blocks == entries - static_cast<int64_t>(distinct.size()));
    CHECK(watch.shared_blocks == 2);
    CHECK(watch.unfilled_cells == 3 * (32 - 6));
    CHECK(watch.used_cells == 64 + 3 * 6);
    CHECK(std::count(watch.fullest.begin(), watch.fullest.end(), BlockUse::Shared) == 2);
    CHECK(std::count(watch.fullest.begin(), watch.fullest.end(), BlockUse::Held) == 3);
}

}  // namespace
}  // namespace runnel::measure
