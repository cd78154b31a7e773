// Gathers of a tensor split by NCCL (kernels/cuda/nccl/), with the emulator's NCCL on its GPUs.
#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include "kernels/cuda/nccl/group.h"
#include "kernels/cuda/runtime/switches.h"
#include "kernels/device.h"
#include "kernels/device_gathers.h"
#include "kernels/row_cut.h"
#include "kernels/tensor_backend.h"
#include "kernels/tensor_program.h"
#include "tests/simt/nccl.h"
#include "tests/simt/simt.h"
#include "tests/support/program_runs.h"
#include "tests/support/split_ranks.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::kernels;
using tests::Gpus;
using tests::kBlocks;
using tests::kMaxTokens;
using tests::make_ranks;
using tests::mixture;
using tests::one_gpu;
using tests::random_tokens;
using tests::rank_names;
using tests::Ranks;
using tests::run;
using tests::run_branch;
using tests::same;
using tests::Shares;
using tests::shares_of;
using tests::TinyProgram;
using tests::TinyShape;

namespace {

constexpr const char *kByNccl = "gathers by NCCL 2.28.9";

std::unique_ptr<Backend> split(Ranks ranks, Shares shares) {
    const size_t count = ranks.size();
    return make_tensor_backend(std::move(ranks), std::move(shares), rank_names(count));
}

// Several GPUs with NCCL, which must not be misused.
struct GpusWithNccl {
    explicit GpusWithNccl(int count) : gpus(count) {}
    ~GpusWithNccl() {
        cuda::use_device(0);
        for (const std::string &what : simt::nccl().misuse) CHECK_MESSAGE(false, what);
        CHECK(simt::nccl().communicators == 0);  // all have ended
    }
    Gpus gpus;
    simt::WithNccl nccl;
};

// A program that is the same for all cases that only look at errors and counts.
const TinyProgram &small_program() {
    static const TinyProgram tiny({.layers = 2, .type = gguf::Type::Q8_0}, 54);
    return tiny;
}

// The error of a batch of six tokens.
std::string error_of(Backend &backend) {
    const std::vector<int32_t> tokens = random_tokens(6, 54), positions = {0, 1, 2, 3, 4, 5}, rows = {5};
    const std::vector<BlockId> table = {0};
    const SequenceSpan span{0, 6, 0, {table}};
    std::vector<float> logits(static_cast<size_t>(small_program().program().vocab));
    try {
        backend.execute({tokens, positions, {&span, 1}, rows}, logits);
    } catch (const BackendError &error) {
        return error.what();
    }
    return "";
}

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Two slots of a rank, which its one part takes and gives: what it has of a cut slot, and the whole one.
constexpr Slot kOwn = 0, kWhole = 1;
Program program_of(int64_t own, int64_t whole) {
    Program program;
    program.slots = {{"own", own}, {"whole", whole}, {"copy", whole}};
    program.steps = {Copy{kWhole, 2, {}, {}, 1, whole, -1}};
    program.parts = {{1, {kOwn, kWhole}, {kOwn, kWhole}}};
    return program;
}

// The value of a slot at a token.
float value_of(int64_t token, int64_t at) {
    return static_cast<float>(1000 * token + at);
}

// Random ranges of `units` for the ranks, which may overlap and together are everything.
Cut overlapping_ranges(size_t ranks, int64_t units, std::mt19937 &random) {
    Cut cut;
    int64_t covered = 0;
    for (size_t r = 0; r < ranks; ++r) {
        const int64_t left = r + 1 == ranks ? 0 : units - covered;
        const int64_t end = units - static_cast<int64_t>(random() % static_cast<uint64_t>(left + 1));
        cut.push_back({static_cast<int64_t>(random() % static_cast<uint64_t>(covered + 1)), end});
        covered = std::max(covered, end);
    }
    return cut;
}

}  // namespace

TEST_CASE("nccl: a gather puts each piece in its place, on the ranks that receive it") {
    std::mt19937 random(3);
    bool middle = false;  // a rank sends from the middle of its slot
    for (const size_t ranks : {2, 3, 4, 6, 7}) {
        CAPTURE(ranks);
        const GpusWithNccl gpus(static_cast<int>(ranks));
        const int32_t slices = 1 + static_cast<int32_t>(random() % 3), tokens = 3;
        const Cut cut = overlapping_ranges(ranks, 40, random), pieces = without_copies(cut);
        Gather gather{kOwn, kWhole, scaled(pieces, slices), {}, slices};
        const Ranks devices = make_ranks(one_gpu, ranks);
        std::vector<DeviceGathers *> all;
        for (size_t r = 0; r < ranks; ++r) {
            gather.first.push_back((pieces[r].begin - cut[r].begin) * slices);
            middle = middle || (gather.first[r] > 0 && pieces[r].size() > 0);
            devices[r]->load(program_of(cut[r].size() * slices, 40 * slices), {}, tokens);
            all.push_back(devices[r]->gathers());
        }
        all[0]->join(all);
        std::vector<char> receivers(ranks, 1);
        receivers[random() % ranks] = 0;
        for (size_t r = 0; r < ranks; ++r) {
            const SlotRows own = devices[r]->exchange(kOwn), whole = devices[r]->exchange(kWhole);
            for (int64_t t = 0; t < tokens; ++t) {
                for (int64_t i = 0; i < slices; ++i)
                    for (int64_t j = 0; j < cut[r].size(); ++j)
                        own.data[t * own.stride + i * cut[r].size() + j] =
                            value_of(t, 40 * i + cut[r].begin + j);
                std::fill_n(whole.data + t * whole.stride, 40 * slices, -1.0f);
            }
            if (cut[r].size() > 0) all[r]->copy_in(kOwn, tokens);
            all[r]->copy_in(kWhole, tokens);
            all[r]->gather(gather, tokens, receivers);
            all[r]->copy_out(kWhole, tokens);
        }
        for (DeviceGathers *const one : all) one->wait();
        for (size_t r = 0; r < ranks; ++r) {
            const SlotRows whole = devices[r]->exchange(kWhole);
            for (int64_t t = 0; t < tokens; ++t)
                for (int64_t i = 0; i < 40 * slices; ++i)
                    REQUIRE(whole.data[t * whole.stride + i] == (receivers[r] ? value_of(t, i) : -1));
        }
        for (DeviceGathers *const one : all) one->leave();
    }
    CHECK(middle);
}

TEST_CASE("nccl: two to eight GPUs give the bits of one, with random programs and shares") {
    struct Case {
        uint32_t ranks;
        TinyShape shape;
    };
    std::vector<Case> cases = {{2, {.layers = 1, .type = gguf::Type::F16}},
                               {3, {.layers = 2, .head_norm = true, .bias = true, .type = gguf::Type::Q8_0}},
                               {5, mixture(7)},
                               {8, {.layers = 1, .type = gguf::Type::Q8_0}}};
    cases[0].shape.kv_heads = 2, cases[3].shape.kv_heads = 1;
    uint32_t seed = 7;
    for (const auto &[ranks, shape] : cases) {
        CAPTURE(ranks);
        const GpusWithNccl gpus(static_cast<int>(ranks));
        const TinyProgram tiny(shape, ++seed);
        const std::vector<int32_t> tokens = random_tokens(kMaxTokens / 2, seed);
        const auto whole = one_gpu(0);
        whole->load(tiny.program(), {{kBlocks}}, kMaxTokens);
        const std::vector<float> expected = run(*whole, tiny.program(), tokens, tokens.size());
        const std::vector<float> branch = run_branch(*whole, tiny.program(), tokens, 17);
        const auto backend = split(make_ranks(one_gpu, ranks), shares_of(ranks, seed));
        backend->load(tiny.program(), {{kBlocks}}, kMaxTokens);
        REQUIRE(backend->gather_note() == kByNccl);
        const int64_t before = simt::nccl().floats;
        CHECK(same(run(*backend, tiny.program(), tokens, tokens.size()), expected));
        // No rank gets what it does not read.
        const auto most = gathered_bytes_per_token(cut_program(tiny.program(), shares_of(ranks, seed)));
        CHECK(simt::nccl().floats > before);
        CHECK(static_cast<size_t>(simt::nccl().floats - before) * 4 <= most * tokens.size());
        CHECK(same(run_branch(*backend, tiny.program(), tokens, 17), branch));
        CHECK(same(run(*backend, tiny.program(), std::span(tokens).first(3), 1),
                   {expected.begin(), expected.begin() + 3 * tiny.program().vocab}));
    }
}

TEST_CASE("nccl: within a batch the host neither waits nor copies activations") {
    const GpusWithNccl gpus(3);
    const TinyProgram &tiny = small_program();
    std::vector<float> expected;
    for (const bool nccl : {true, false}) {
        simt::nccl().installed = nccl;
        const auto backend = split(make_ranks(one_gpu, 3), {1, 1, 1});
        backend->load(tiny.program(), {{kBlocks}}, kMaxTokens);
        const std::vector<int32_t> tokens = random_tokens(4, 3);
        const std::vector<float> logits = run(*backend, tiny.program(), tokens, 1);  // records graphs
        if (nccl) expected = logits;
        CHECK(same(logits, expected));
        simt::take_host_traffic();
        simt::nccl().most_pending = 0;
        run(*backend, tiny.program(), tokens, 1);
        const simt::HostTraffic traffic = simt::take_host_traffic();
        if (nccl) {
            // Of each rank and batch: the tokens, positions and tables to the device, its logits back.
            CHECK(traffic.to_device == 3 * 4 * 2);
            CHECK(traffic.to_host == 3 * 4);
            CHECK(traffic.waits == 3 * 4);
            CHECK(simt::nccl().most_pending == 4 * 2 + 1);  // all gathers of a batch
        } else {
            CHECK(traffic.waits > 9 * 3 * 4);
        }
    }
}

TEST_CASE("nccl: the host runs ahead of the devices by at most 32 stages") {
    const GpusWithNccl gpus(2);
    TinyShape shape{.layers = 14, .width = 32, .feed_forward = 32, .type = gguf::Type::Q8_0};
    shape.heads = shape.kv_heads = 2;
    const TinyProgram tiny(shape, 5);
    REQUIRE(cut_program(tiny.program(), Shares{1, 1}).stages.size() == 14 * 4 + 2);
    const auto backend = split(make_ranks(one_gpu, 2), {1, 1});
    backend->load(tiny.program(), {{kBlocks}}, kMaxTokens);
    const std::vector<float> logits =
        run(*backend, tiny.program(), random_tokens(1, 3), 1);  // records graphs
    simt::nccl().most_pending = 0;
    CHECK(same(run(*backend, tiny.program(), random_tokens(1, 3), 1), logits));
    CHECK(simt::nccl().most_pending > 16);
    CHECK(simt::nccl().most_pending <= 32);
}

TEST_CASE("nccl: a program in two parts gives the slot between them and takes it back") {
    for (const uint32_t ranks : {2u, 3u}) {
        const GpusWithNccl gpus(static_cast<int>(ranks));
        const TinyProgram tiny({.layers = 2, .type = gguf::Type::Q8_0}, 60 + ranks);
        const tests::TwoParts whole = tests::run_two_parts(*one_gpu(0), tiny, ranks);
        const auto backend = split(make_ranks(one_gpu, ranks), Shares(ranks, 1));
        const tests::TwoParts got = tests::run_two_parts(*backend, tiny, ranks);
        CHECK(backend->gather_note() == kByNccl);
        CHECK(same(whole.states, got.states));
        CHECK(same(whole.logits, got.logits));
    }
}

TEST_CASE("nccl: a cancelled batch ends on all ranks, and earlier cells stay") {
    const GpusWithNccl gpus(2);
    const TinyProgram tiny({.layers = 5, .type = gguf::Type::Q8_0}, 53);
    REQUIRE(cut_program(tiny.program(), Shares{1, 1}).stages.size() > 16);
    std::atomic<bool> cancel = false, armed = false;
    Ranks two = make_ranks(one_gpu, 2);
    two[1] = std::make_unique<tests::CancellingBackend>(std::move(two[1]), armed, cancel);
    const auto backend = split(std::move(two), {1, 1});
    backend->load(tiny.program(), {{kBlocks}}, kMaxTokens);
    const std::vector<int32_t> tokens = random_tokens(9, 53);
    const std::vector<float> expected = run(*backend, tiny.program(), tokens, 5);
    std::vector<BlockId> table(kBlocks);
    std::iota(table.rbegin(), table.rend(), 0);
    const std::vector<int32_t> positions = {5, 6}, rows = {0};
    const SequenceSpan span{0, 2, 5, {table}};
    std::vector<float> logits(static_cast<size_t>(tiny.program().vocab));
    armed = true;
    CHECK(!backend->execute({std::span(tokens).subspan(5, 2), positions, {&span, 1}, rows, &cancel}, logits));
    CHECK(cancel);
    armed = false;
    const std::vector<float> tail = run(*backend, tiny.program(), std::span(tokens).last(4), 4, 5);
    CHECK(same(tail, {expected.end() - static_cast<std::ptrdiff_t>(tail.size()), expected.end()}));
}

TEST_CASE("nccl: the error of one rank ends the batch on all, with its name, and the next batch works") {
    for (const size_t failing : {0, 2}) {
        const GpusWithNccl gpus(3);
        std::atomic<bool> armed = false;
        Ranks three = make_ranks(one_gpu, 3);
        three[failing] = std::make_unique<tests::FailingBackend>(std::move(three[failing]), armed, 1);
        const auto backend = split(std::move(three), {1, 1, 1});
        backend->load(small_program().program(), {{kBlocks}}, kMaxTokens);
        const std::vector<int32_t> tokens = random_tokens(6, 54);
        const std::vector<float> expected = run(*backend, small_program().program(), tokens, 6);
        armed = true;
        for (int again = 0; again < 2; ++again) {
            const auto start = std::chrono::steady_clock::now();
            CHECK(error_of(*backend) == "number " + std::to_string(failing) + ": the device is lost");
            CHECK(seconds_since(start) < 10);
        }
        CHECK(simt::nccl().aborted == 6);
        armed = false;
        CHECK(same(run(*backend, small_program().program(), tokens, 6), expected));
        CHECK(simt::nccl().communicators == 3);  // new ones
        CHECK(backend->gather_note() == kByNccl);
    }
}

TEST_CASE("nccl: a gather that fails on the device ends the batch on all ranks, and the next batch works") {
    const GpusWithNccl gpus(3);
    const auto backend = split(make_ranks(one_gpu, 3), {1, 1, 1});
    simt::nccl().failing_rank = 1, simt::nccl().failing_group = 5;
    backend->load(small_program().program(), {{kBlocks}}, kMaxTokens);
    const auto start = std::chrono::steady_clock::now();
    CHECK(error_of(*backend) == "number 1: NCCL 2.28.9: gathering: remote error");
    CHECK(seconds_since(start) < 10);
    CHECK(simt::nccl().aborted == 3);
    simt::nccl().failing_rank = -1;
    setenv(cuda::kSwitchesVariable, "nccl", 1);
    const auto without = split(make_ranks(one_gpu, 3), {1, 1, 1});
    unsetenv(cuda::kSwitchesVariable);
    without->load(small_program().program(), {{kBlocks}}, kMaxTokens);
    const std::vector<int32_t> tokens = random_tokens(6, 54);
    CHECK(same(run(*backend, small_program().program(), tokens, 6),
               run(*without, small_program().program(), tokens, 6)));
    CHECK(without->gather_note() == "gathers through host memory (RUNNEL_CUDA_OFF disables NCCL)");
}

TEST_CASE("nccl: without a library that works, gathers go through host memory, and the note says why") {
    const auto note = [](auto change, bool own_gpus = true) {
        const GpusWithNccl gpus(2);
        change(simt::nccl());
        Ranks two = make_ranks(one_gpu, 2);
        if (!own_gpus) two[1] = one_gpu(0);
        const auto backend = split(std::move(two), {1, 1});
        backend->load(small_program().program(), {{kBlocks}}, kMaxTokens);
        CHECK(error_of(*backend).empty());
        return backend->gather_note();
    };
    const auto host = [](const std::string &why) { return "gathers through host memory (" + why + ")"; };
    CHECK(note([](simt::Nccl &) {}) == kByNccl);
    CHECK(note([](simt::Nccl &n) { n.installed = false; }) ==
          host("no NCCL is installed on the emulated devices"));
    CHECK(note([](simt::Nccl &n) { n.version = 21304; }) ==
          host("NCCL 2.13.4 is too old: 2.14 or a later 2.x is needed"));
    CHECK(note([](simt::Nccl &n) { n.missing = "ncclSend"; }) ==
          host("libnccl.so.2 lacks the function ncclSend"));
    CHECK(note([](simt::Nccl &n) { n.init_error = 1; }) == host("NCCL 2.28.9: starting: an error"));
    CHECK(note([](simt::Nccl &n) { n.damage = true; }) ==
          host("NCCL 2.28.9: a copy between two GPUs arrived damaged"));
    CHECK(note([](simt::Nccl &) {}, false) == host("NCCL needs a GPU for each rank"));
}

TEST_CASE("nccl: its memory is planned, if it can be used") {
    const GpusWithNccl gpus(2);
    const TensorProgram tensor = cut_program(small_program().program(), Shares{1, 1});
    const DevicePtr gpu = devices().gpus.front();
    CHECK(gpu->gather_need(tensor.programs[0], 100) > size_t{512} << 20);
    CHECK(gpu->gather_need(tensor.programs[0], 300) > gpu->gather_need(tensor.programs[0], 100));
    simt::nccl().version = 20000;
    CHECK(gpu->gather_need(tensor.programs[0], 100) == 0);
}

TEST_CASE("simt: the emulated NCCL refuses what NCCL must not be given") {
    const Gpus gpus(2);
    const simt::WithNccl installed;
    const auto f = cuda::nccl::load(cuda::nccl::installed()).functions;
    const int numbers[] = {0, 1};
    cuda::nccl::Communicator *ranks[2];
    REQUIRE(f.init_all(ranks, 2, numbers) == cuda::nccl::kSuccess);
    std::vector<cuda::DeviceMemory> memory;
    std::vector<cuda::Stream> streams;
    for (const int number : numbers) {
        cuda::use_device(number);
        memory.emplace_back(256, "memory");
        streams.emplace_back();
        streams.back().fill(memory.back().data(), 0, 256);
    }
    const auto send = [&](size_t rank, size_t of, size_t stream, int to, int type = cuda::nccl::kFloat32) {
        return f.send(memory[of].data(), 4, type, to, ranks[rank], streams[stream].native());
    };
    CHECK(send(0, 0, 0, 1) != cuda::nccl::kSuccess);  // outside a group
    f.group_start();
    CHECK(send(0, 1, 0, 1) != cuda::nccl::kSuccess);     // the other's memory
    CHECK(send(0, 0, 1, 1) != cuda::nccl::kSuccess);     // the other's stream
    CHECK(send(0, 0, 0, 2) != cuda::nccl::kSuccess);     // no such rank
    CHECK(send(0, 0, 0, 1, 0) != cuda::nccl::kSuccess);  // bytes
    CHECK(send(0, 0, 0, 1) == cuda::nccl::kSuccess);
    CHECK(f.receive(memory[1].data(), 5, cuda::nccl::kFloat32, 0, ranks[1], streams[1].native()) ==
          cuda::nccl::kSuccess);
    f.group_end();
    CHECK(simt::nccl().misuse.size() == 5);
    // The sizes differ.
    cuda::Event sent, received;
    cuda::use_device(0);
    streams[0].record(sent);
    CHECK(!sent.wait(std::chrono::microseconds(100)));
    cuda::use_device(1);
    streams[1].record(received);
    CHECK_THROWS_AS(received.wait(std::chrono::microseconds(100)), simt::Violation);
    for (cuda::nccl::Communicator *const one : ranks) f.abort(one);
    cuda::use_device(0);
}
