// The devices of a layer split compute parts of a large batch at the same time, with the bits of one device.
#include <doctest/doctest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "kernels/microbatches.h"
#include "kernels/split_backend.h"
#include "kernels/stage_order.h"
#include "tests/support/program_runs.h"
#include "tests/support/split_ranks.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::kernels;
using tests::Gpus;
using tests::kBlocks;
using tests::kMaxTokens;
using tests::make_ranks;
using tests::MakeDevice;
using tests::one_cpu;
using tests::one_gpu;
using tests::random_tokens;
using tests::rank_names;
using tests::Ranks;
using tests::run;
using tests::run_branch;
using tests::same;
using tests::TinyProgram;
using tests::TinyShape;

namespace {

constexpr int32_t kPart = 6;  // tokens

// The steps in equal consecutive shares, one per device.
std::unique_ptr<Backend> in_a_row(Ranks devices) {
    const size_t count = devices.size();
    return make_split_backend(
        std::move(devices),
        [count](const Program &program) {
            std::vector<uint8_t> device(program.steps.size());
            for (size_t i = 0; i < device.size(); ++i)
                device[i] = static_cast<uint8_t>(count * i / device.size());
            return device;
        },
        rank_names(count), kPart);
}

// Two sequences of 25 and 15 tokens. Logits of all tokens.
std::vector<float> run_two(Backend &backend, const Program &program, std::span<const int32_t> tokens) {
    const std::vector<BlockId> one = {0}, other = {1};
    const SequenceSpan spans[] = {{0, 25, 0, {one}}, {25, 15, 0, {other}}};
    std::vector<int32_t> positions(40), rows(40);
    for (int32_t i = 0; i < 40; ++i) positions[static_cast<size_t>(i)] = i < 25 ? i : i - 25;
    std::iota(rows.begin(), rows.end(), 0);
    std::vector<float> logits(40 * static_cast<size_t>(program.vocab), 12345);
    REQUIRE(backend.execute({tokens, positions, spans, rows}, logits));
    return logits;
}

// Waits, within its first two batches, until two devices work at the same time.
struct Meeting {
    std::mutex mutex;
    std::condition_variable changed;
    int now = 0, most = 0;
};
class MeetingBackend final : public ForwardingBackend {
  public:
    MeetingBackend(std::unique_ptr<Backend> device, Meeting &meeting)
        : ForwardingBackend(std::move(device)), meeting_(meeting) {}
    bool execute(const Batch &batch, std::span<float> logits) override {
        {
            std::unique_lock lock(meeting_.mutex);
            meeting_.most = std::max(meeting_.most, ++meeting_.now);
            meeting_.changed.notify_all();
            if (++batches_ == 2)
                meeting_.changed.wait_for(lock, std::chrono::seconds(20), [&] { return meeting_.most > 1; });
        }
        const bool done = ForwardingBackend::execute(batch, logits);
        const std::lock_guard lock(meeting_.mutex);
        --meeting_.now;
        return done;
    }

  private:
    Meeting &meeting_;
    int batches_ = 0;
};

}  // namespace

TEST_CASE("split pipeline: a batch is cut into equal parts of tokens, with their sequences and rows") {
    std::vector<int32_t> tokens(20), positions(20);
    std::iota(tokens.begin(), tokens.end(), 100);
    std::iota(positions.begin(), positions.end(), 7);
    const std::vector<BlockId> one = {3, 4}, two = {5};
    const SequenceSpan spans[] = {{0, 3, 30, {one}}, {3, 17, 0, {two}}};
    const std::vector<int32_t> rows = {2, 6, 7, 19};
    const Batch batch{tokens, positions, spans, rows};
    const Microbatches parts(batch, 6);
    REQUIRE(parts.size() == 3);
    const std::vector<int32_t> begins = {0, 6, 13, 20};
    const std::vector<std::vector<int32_t>> rows_of = {{2}, {0, 1}, {6}};
    for (size_t i = 0; i < 3; ++i) {
        CAPTURE(i);
        const auto count = static_cast<size_t>(begins[i + 1] - begins[i]);
        CHECK(parts[i].tokens.size() == count);
        CHECK(parts[i].tokens.data() == tokens.data() + begins[i]);
        CHECK(parts[i].positions.data() == positions.data() + begins[i]);
        CHECK(std::vector(parts[i].logit_rows.begin(), parts[i].logit_rows.end()) == rows_of[i]);
        CHECK(parts.rows_before(i) == (i == 0 ? 0 : i == 1 ? 1 : 3));
    }
    CHECK(!parts.rows_in_last_only());
    REQUIRE(parts[0].sequences.size() == 2);
    CHECK(parts[0].sequences[0].past == 30);
    CHECK(parts[0].sequences[0].count == 3);
    CHECK(parts[0].sequences[1].first == 3);
    CHECK(parts[0].sequences[1].count == 3);
    REQUIRE(parts[2].sequences.size() == 1);
    CHECK(parts[2].sequences[0].first == 0);
    CHECK(parts[2].sequences[0].count == 7);
    CHECK(parts[2].sequences[0].past == 10);
    CHECK(parts[2].sequences[0].tables[0].data() == two.data());
    const std::vector<int32_t> last = {19};
    CHECK(Microbatches({tokens, positions, spans, last}, 10).rows_in_last_only());

    CHECK(Microbatches(batch, 11).size() == 1);
    CHECK(Microbatches(batch, 10).size() == 2);
    SequenceSpan kept[] = {spans[0], spans[1]};
    const Batch other{tokens, positions, kept, rows};
    CHECK(Microbatches(other, 5).size() == 4);
    // States: only where they are stored, or where a sequence ends.
    kept[0].state = 1, kept[0].state_writes = {{3, 2}};
    kept[1].state_writes = {{8, 5}, {16, 6}, {17, 7}};
    const Microbatches states(other, 5);
    REQUIRE(states.size() == 2);
    CHECK(states[0].tokens.size() == 11);
    CHECK(states[0].sequences[0].state == 1);
    REQUIRE(states[0].sequences[1].state_writes.size() == 1);
    CHECK(states[0].sequences[1].state == kNoState);
    CHECK(states[0].sequences[1].state_writes[0].tokens == 8);
    CHECK(states[0].sequences[1].state_writes[0].slot == 5);
    const SequenceSpan &rest = states[1].sequences[0];
    CHECK(rest.state == 5);
    CHECK(rest.past == 8);
    REQUIRE(rest.state_writes.size() == 2);
    CHECK(rest.state_writes[0].tokens == 8);
    CHECK(rest.state_writes[1].tokens == 9);
    CHECK(rest.state_writes[1].slot == 7);
    CHECK(Microbatches(other, 3).size() == 3);
    for (SequenceSpan &span : kept) span.state = kNoState, span.state_writes.clear();
    CHECK(Microbatches(other, 5).size() == 4);
    kept[1].both_ways = true;
    CHECK(Microbatches(other, 5).size() == 1);
    kept[1].both_ways = false, kept[1].shared = 2;
    CHECK(Microbatches(other, 5).size() == 1);
}

TEST_CASE("split pipeline: two to four devices give the bits of one") {
    const Gpus gpus(4);
    for (const MakeDevice make : {MakeDevice{one_cpu}, MakeDevice{one_gpu}})
        for (uint32_t devices = 2; devices <= 4; ++devices) {
            const uint32_t seed = 10 * devices + (make == one_gpu);
            CAPTURE(seed);
            TinyShape shape{.layers = 3, .type = gguf::Type::Q8_0};
            shape.window = devices == 3 ? 9 : 0;
            if (devices == 4) shape.experts = {.count = 4, .routing = {.used = 2}};
            const TinyProgram tiny(shape, seed);
            const std::vector<int32_t> tokens = random_tokens(kMaxTokens, seed);
            const auto whole = make(0);
            whole->load(tiny.program(), {{kBlocks}}, kMaxTokens);
            const auto split = in_a_row(make_ranks(make, devices));
            split->load(tiny.program(), {{kBlocks}}, kMaxTokens);
            const std::vector<float> expected = run(*whole, tiny.program(), tokens, tokens.size());
            for (const size_t chunk : {size_t{40}, size_t{13}, size_t{7}})
                CHECK(same(run(*split, tiny.program(), tokens, chunk), expected));
            CHECK(same(run_branch(*split, tiny.program(), tokens, 37),
                       run_branch(*whole, tiny.program(), tokens, 37)));
            CHECK(same(run_two(*split, tiny.program(), tokens), run_two(*whole, tiny.program(), tokens)));
        }
}

TEST_CASE("split pipeline: the largest logits are those of one device, wherever their rows are") {
    const Gpus gpus(2);
    const TinyProgram tiny({.layers = 2, .type = gguf::Type::Q8_0}, 5);
    const std::vector<int32_t> tokens = random_tokens(24, 5);
    std::vector<int32_t> positions(24);
    std::iota(positions.begin(), positions.end(), 0);
    const std::vector<BlockId> table = {0};
    const SequenceSpan span{0, 24, 0, {table}};
    for (const std::vector<int32_t> &rows : {std::vector<int32_t>{23}, {20, 23}, {2, 23}}) {
        std::vector<std::vector<TopLogit>> found;
        std::vector<std::vector<float>> logits;
        for (const bool several : {false, true}) {
            const auto backend = several ? in_a_row(make_ranks(one_gpu, 2)) : one_gpu(0);
            backend->load(tiny.program(), {{kBlocks}}, kMaxTokens);
            std::vector<TopLogit> largest(3 * rows.size());
            std::vector<ExpSum> sums(rows.size());
            REQUIRE(backend->execute({tokens, positions, {&span, 1}, rows}, 3, largest, sums));
            found.push_back(largest);
            logits.emplace_back(static_cast<size_t>(tiny.program().vocab));
            backend->read_logits(static_cast<int32_t>(rows.size()) - 1, logits.back());
        }
        CHECK(same(logits[0], logits[1]));
        for (size_t i = 0; i < found[0].size(); ++i) {
            CHECK(found[0][i].token == found[1][i].token);
            CHECK(found[0][i].logit == found[1][i].logit);
        }
    }
}

TEST_CASE("split pipeline: devices work at the same time, each on another part") {
    const TinyProgram tiny({.layers = 3, .type = gguf::Type::Q8_0}, 6);
    Meeting meeting;
    Ranks three = make_ranks(one_cpu, 3);
    for (auto &device : three) device = std::make_unique<MeetingBackend>(std::move(device), meeting);
    const auto split = in_a_row(std::move(three));
    split->load(tiny.program(), {{kBlocks}}, kMaxTokens);
    run(*split, tiny.program(), random_tokens(40, 6), 40);
    CHECK(meeting.most > 1);
}

TEST_CASE("split pipeline: a cancelled batch and a device's error end all, and the next batch works") {
    const TinyProgram tiny({.layers = 3, .type = gguf::Type::Q8_0}, 7);
    const std::vector<int32_t> tokens = random_tokens(40, 7);
    std::vector<int32_t> positions(40);
    std::iota(positions.begin(), positions.end(), 0);
    std::vector<BlockId> table(kBlocks);
    std::iota(table.rbegin(), table.rend(), 0);
    const SequenceSpan span{0, 40, 0, {table}};
    const std::vector<int32_t> rows = {39};
    std::vector<float> logits(static_cast<size_t>(tiny.program().vocab));
    for (const size_t which : {0, 1, 2}) {
        CAPTURE(which);
        std::atomic<bool> armed = false, cancel = false;
        Ranks three = make_ranks(one_cpu, 3);
        three[which] = std::make_unique<tests::CancellingBackend>(std::move(three[which]), armed, cancel);
        const auto split = in_a_row(std::move(three));
        split->load(tiny.program(), {{kBlocks}}, kMaxTokens);
        const std::vector<float> expected = run(*split, tiny.program(), tokens, 40);
        armed = true;
        CHECK(!split->execute({tokens, positions, {&span, 1}, rows, &cancel}, logits));
        armed = cancel = false;
        CHECK(same(run(*split, tiny.program(), tokens, 40), expected));

        three = make_ranks(one_cpu, 3);
        three[which] = std::make_unique<tests::FailingBackend>(std::move(three[which]), armed);
        const auto failing = in_a_row(std::move(three));
        failing->load(tiny.program(), {{kBlocks}}, kMaxTokens);
        armed = true;
        const std::string message = "number " + std::to_string(which) + ": the device is lost";
        CHECK_THROWS_WITH_AS(failing->execute({tokens, positions, {&span, 1}, rows}, logits), message.c_str(),
                             BackendError);
        armed = false;
        CHECK(same(run(*failing, tiny.program(), tokens, 40), expected));
    }
}

TEST_CASE("split pipeline: no stage begins before its input is there, nor before its output was taken") {
    // Stages 0 to 3: 1 reads 0, 2 reads 0 and 1, 3 reads 2.
    const std::vector<std::vector<size_t>> writers = {{}, {0}, {0, 1}, {2}};
    constexpr size_t kParts = 50;
    StageOrder order(writers);
    std::mutex mutex;
    std::vector<size_t> taken(4), done(4);
    bool wrong = false;
    std::vector<std::thread> threads;
    for (size_t s = 0; s < 4; ++s)
        threads.emplace_back([&, s] {
            order.run(
                s, kParts,
                [&](size_t part) {
                    const std::lock_guard lock(mutex);
                    for (const size_t writer : writers[s]) wrong = wrong || done[writer] != part + 1;
                    for (size_t reader = 0; reader < 4; ++reader)
                        for (const size_t writer : writers[reader])
                            if (writer == s) wrong = wrong || taken[reader] < part;
                    ++taken[s];
                },
                [&](size_t part) {
                    if (part % 7 == s) std::this_thread::sleep_for(std::chrono::microseconds(300));
                    const std::lock_guard lock(mutex);
                    ++done[s];
                    return true;
                });
        });
    for (std::thread &thread : threads) thread.join();
    CHECK(order.finished());
    CHECK(!wrong);
    CHECK(done == std::vector<size_t>(4, kParts));
}
