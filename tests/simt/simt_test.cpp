// Tests the emulator itself: correct kernels run, wrong ones are caught, for any order of blocks and threads.
#include "tests/simt/simt.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "gguf/half.h"
#include "kernels/cuda/runtime/device.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/runtime/runtime.h"
#include "tests/simt/small_kernels.h"
#include "tests/support/random.h"

using namespace runnel;
using namespace runnel::kernels::cuda;
using namespace runnel::simt;

namespace {

constexpr uint32_t kBlocks = 3;
constexpr size_t kThreads = kBlocks * kSmallThreads, kBytes = kThreads * sizeof(float);

// The buffers of a small kernel: in holds 0, 1, 2, ..., out is uninitialized.
struct Small {
    Stream stream;
    DeviceMemory in{kBytes, "in"}, out{kBytes, "out"}, counter{4, "counter"},
        weights{16 * kSmallThreads, "weights"};
    std::vector<float> host = std::vector<float>(kThreads), fours = std::vector<float>(4 * kSmallThreads);

    Small() {
        std::iota(host.begin(), host.end(), 0.0f);
        std::iota(fours.begin(), fours.end(), 0.0f);
        stream.copy_to_device(in.data(), host.data(), kBytes);
        stream.fill(counter.data(), 0, 4);
        name_region(weights.data(), weights.size(), "weights", Region::Weights);
        stream.copy_to_device(weights.data(), fours.data(), weights.size());
        stream.wait();
    }
    SmallParams params() const {
        return {in.as<float>(), out.as<float>(), counter.as<uint32_t>(), weights.data(), 1};
    }
    std::vector<float> result(size_t count) {
        std::vector<float> values(count);
        stream.copy_to_host(values.data(), out.data(), count * sizeof(float));
        stream.wait();
        return values;
    }
};

struct WithSeed {
    explicit WithSeed(uint64_t seed) { settings().seed = seed; }
    ~WithSeed() { settings() = {}; }
};

bool mentions_one(const std::string &text, std::string alternatives) {
    for (size_t end; !alternatives.empty(); alternatives.erase(0, end + (end < alternatives.size()))) {
        end = std::min(alternatives.find('|'), alternatives.size());
        if (text.find(alternatives.substr(0, end)) != std::string::npos) return true;
    }
    return false;
}

}  // namespace

TEST_CASE("simt: every check finds its wrong kernel, in any order") {
    for (uint64_t seed = 1; seed <= 5; ++seed)
        for (const WrongKernel &wrong : wrong_kernels()) {
            const WithSeed with(seed);
            CAPTURE(seed);
            CAPTURE(std::string(wrong.kernel.handle.name));
            Small small;
            launch(small.stream, wrong.kernel, {kBlocks, kSmallShared, wrong.dependent}, small.params());
            std::string message = "nothing was found";
            try {
                small.stream.wait();
            } catch (const Violation &e) {
                message = e.what();
            }
            CAPTURE(message);
            CHECK(mentions_one(message, wrong.message));
            CHECK(mentions_one(message, wrong.kernel.handle.name));
        }
}

TEST_CASE("simt: right kernels give the right results for every order") {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        const WithSeed with(seed);
        CAPTURE(seed);
        Small small;
        launch(small.stream, block_sum_kernel(), {kBlocks, kSmallShared}, small.params());
        const auto sums = small.result(kThreads);
        const float first = std::accumulate(small.host.begin(), small.host.begin() + kSmallThreads, 0.0f);
        CHECK(sums[0] == first);
        CHECK(sums[kSmallThreads - 1] == first);
        CHECK(sums[kSmallThreads] == first + kSmallThreads * kSmallThreads);

        launch(small.stream, last_block_sum_kernel(), {kBlocks, kSmallShared}, small.params());
        CHECK(small.result(1)[0] == std::accumulate(small.host.begin(), small.host.end(), 0.0f));

        Small staged;
        launch(staged.stream, staged_kernel(), {kBlocks, kSmallShared, true}, staged.params());
        const auto values = staged.result(kThreads);
        for (size_t i = 0; i < kThreads; ++i)
            REQUIRE(values[i] == staged.fours[(i % kSmallThreads ^ 1u) * 4] + staged.host[i]);
    }
}

TEST_CASE("simt: a dependent launch overlaps the previous one, with the same results") {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        const WithSeed with(seed);
        CAPTURE(seed);
        Small small;
        take_reports();
        // The second and third read weights before they wait, then the output of the previous one.
        launch(small.stream, block_sum_kernel(), {kBlocks, kSmallShared}, small.params());
        SmallParams again = small.params();
        again.in = small.out.as<float>();
        again.out = small.in.as<float>();
        launch(small.stream, staged_kernel(), {kBlocks, kSmallShared, true}, again);
        launch(small.stream, staged_kernel(), {kBlocks, kSmallShared, true}, small.params());
        const std::vector<float> values = small.result(kThreads);
        for (size_t i = 0; i < kThreads; ++i) {
            const auto first =
                small.host.begin() + static_cast<std::ptrdiff_t>(i / kSmallThreads * kSmallThreads);
            const float sum = std::accumulate(first, first + kSmallThreads, 0.0f);
            const float weight = small.fours[(i % kSmallThreads ^ 1u) * 4];
            REQUIRE(values[i] == weight + (weight + sum));
        }
        // The early part of a launch counts as its own.
        const auto reports = take_reports();
        REQUIRE(reports.size() == 3);
        CHECK(reports[0].traffic.count("weights") == 0);
        for (const size_t i : {1u, 2u}) {
            CHECK(reports[i].traffic.at("weights").read == kThreads * 16);
            CHECK(reports[i].traffic.at(i == 1 ? "out" : "in").read == kBytes);
            CHECK(reports[i].traffic.at(i == 1 ? "in" : "out").written == kBytes);
        }
    }
}

TEST_CASE("simt: weights that the previous launch writes must not be read before the wait") {
    for (uint64_t seed = 1; seed <= 10; ++seed) {
        const WithSeed with(seed);
        CAPTURE(seed);
        const auto run = [](bool dependent, bool pause) {
            Small small;
            launch(small.stream, write_weights_kernel(), {kBlocks, kSmallShared}, small.params());
            if (pause) small.stream.wait();
            launch(small.stream, staged_kernel(), {kBlocks, kSmallShared, dependent}, small.params());
            return small.result(kThreads)[0];
        };
        CHECK_THROWS_AS(run(true, false), Violation);
        CHECK(run(true, true) == -1.0f);
        CHECK(run(false, false) == -1.0f);
    }
}

TEST_CASE("simt: code for less than sm_90 has no wait, whatever the device") {
    const WithSeed resets(1);
    CHECK(can_depend(staged_kernel().handle));
    CHECK(compile_note(0).empty());
    settings().code = 80;
    CHECK(!can_depend(staged_kernel().handle));
    CHECK(compile_note(0).find("CUDA_ARCHS=90") != std::string::npos);
    const auto run = [](bool dependent) {
        Small small;
        launch(small.stream, staged_kernel(), {kBlocks, kSmallShared, dependent}, small.params());
        return small.result(kThreads)[0];
    };
    CHECK_THROWS_AS(run(true), Violation);  // accepted, but the kernel reads data not yet written
    CHECK(run(false) == 4.0f);
    settings().code = 90;
    settings().major = 12;  // PTX for sm_90 has the wait
    CHECK(can_depend(staged_kernel().handle));
    CHECK(run(true) == 4.0f);
    settings().major = 8, settings().minor = 9, settings().code = 0;
    CHECK(!can_depend(staged_kernel().handle));
}

TEST_CASE("simt: machine code serves its major version") {
    constexpr int kCompiled[] = {80, 90, 120};
    CHECK(has_code_for(kCompiled, 8, 0));
    CHECK(has_code_for(kCompiled, 8, 9));
    CHECK(has_code_for(kCompiled, 12, 1));
    CHECK(!has_code_for(kCompiled, 10, 0));
    CHECK(!has_code_for(kCompiled, 7, 5));
    CHECK(compile_note(kCompiled, 9, 0).empty());
    CHECK(compile_note({}, 9, 0).empty());  // unknown
    CHECK(compile_note(kCompiled, 10, 3).find("sm_103") != std::string::npos);
}

TEST_CASE("simt: the bytes of a launch are counted by buffer") {
    Small small;
    take_reports();
    launch(small.stream, staged_kernel(), {kBlocks, kSmallShared}, small.params());
    small.stream.wait();
    const auto reports = take_reports();
    REQUIRE(reports.size() == 1);
    CHECK(reports[0].kernel == "staged");
    const auto &traffic = reports[0].traffic;
    CHECK(traffic.at("in").read == kBytes);
    CHECK(traffic.at("out").written == kBytes);
    CHECK(traffic.at("weights").read == kThreads * 16);
    CHECK(traffic.at("weights").streamed == 0);
    CHECK(traffic.count("counter") == 0);
}

TEST_CASE("simt: a graph replays what was recorded, and nothing runs while it is") {
    Small small;
    prepare(last_block_sum_kernel().handle, kSmallShared);
    Capture capture(small.stream);
    small.stream.copy_to_device(small.in.data(), small.host.data(), kBytes);
    launch(small.stream, last_block_sum_kernel(), {kBlocks, kSmallShared}, small.params());
    const Graph graph = capture.end();
    small.stream.wait();
    CHECK_THROWS_AS(small.result(1), Violation);  // out is unwritten
    for (int i = 0; i < 3; ++i) {
        small.host.assign(kThreads, static_cast<float>(i + 1));
        small.stream.replay(graph);
        CHECK(small.result(1)[0] == static_cast<float>(kThreads) * static_cast<float>(i + 1));
    }
}

TEST_CASE("simt: what a device refuses while a graph is recorded") {
    Small small;
    const auto record = [&](auto work) {
        Capture capture(small.stream);
        work();
        capture.end();
    };
    CHECK_THROWS_AS(record([&] {
                        launch(small.stream, wrong_kernels().front().kernel, {1, 0}, small.params());
                    }),
                    Violation);
    CHECK_THROWS_AS(record([&] { DeviceMemory(16, "more"); }), Violation);
    CHECK_THROWS_AS(record([&] { PinnedMemory(16); }), Violation);
    CHECK_THROWS_AS(record([&] { prepare(block_sum_kernel().handle, kSmallShared); }), Violation);
    DeviceMemory gone(16, "gone");
    CHECK_THROWS_AS(record([&] { gone = DeviceMemory(); }), Violation);
    prepare(block_sum_kernel().handle, kSmallShared);
    record([&] { launch(small.stream, block_sum_kernel(), {1, kSmallShared}, small.params()); });
}

TEST_CASE("simt: launches with more shared memory than prepare() allowed or the device has fail") {
    constexpr size_t kMuch = 50 << 10;
    Small small;
    const auto start = [&](LaunchShape shape) {
        launch(small.stream, staged_kernel(), shape, small.params());
    };
    CHECK_THROWS_AS(start({kBlocks, kMuch, true}), Violation);
    prepare(staged_kernel().handle, kMuch);
    start({kBlocks, kMuch, true});
    CHECK_THROWS_AS(start({kBlocks, kMuch + 16, true}), Violation);
    CHECK_THROWS_AS(start({kBlocks, kMuch - 8, true}), Violation);  // nvcc may read all of the last 16 bytes
    small.stream.wait();
    const WithSeed resets(1);
    settings().major = 8;
    CHECK_THROWS_AS(start({kBlocks, kMuch, true}), Violation);
    start({kBlocks, kMuch, false});
    small.stream.wait();
}

TEST_CASE("simt: a stream, memory and the thread that uses them are of one device") {
    const WithSeed resets(1);
    settings().devices = 2;
    Small small;
    use_device(1);
    Stream stream;
    DeviceMemory there(kBytes, "there");
    const PinnedMemory pinned(kBytes);
    stream.copy_to_device(there.data(), pinned.data(), kBytes);
    stream.wait();
    const auto use = [&](auto work) {
        work();
        stream.wait();
    };
    CHECK_THROWS_AS(use([&] { stream.fill(small.in.data(), 0, kBytes); }), Violation);
    CHECK_THROWS_AS(use([&] { stream.copy_to_device(small.in.data(), pinned.data(), kBytes); }), Violation);
    CHECK_THROWS_AS(use([&] { stream.copy_to_host(pinned.data(), small.in.data(), kBytes); }), Violation);
    CHECK_THROWS_AS(use([&] {
                        launch(stream, block_sum_kernel(), {kBlocks, kSmallShared}, small.params());
                    }),
                    Violation);
    use_device(0);
    CHECK_THROWS_AS(use([&] { stream.fill(there.data(), 0, kBytes); }), Violation);
    CHECK_THROWS_AS(use([&] {
                        launch(stream, block_sum_kernel(), {kBlocks, kSmallShared}, small.params());
                    }),
                    Violation);
}

TEST_CASE("simt: streams run when they are waited for, events order them") {
    Small small;
    Stream other;
    Event copied;
    std::vector<float> twos(kThreads, 2.0f);
    other.copy_to_device(small.in.data(), twos.data(), kBytes);
    other.record(copied);
    CHECK(!copied.done());
    small.stream.wait_for(copied);
    launch(small.stream, block_sum_kernel(), {kBlocks, kSmallShared}, small.params());
    twos.assign(kThreads, 3.0f);  // too early: the copy reads the value when it runs
    CHECK(small.result(1)[0] == 3.0f * kSmallThreads);
    CHECK(copied.done());
}

TEST_CASE("simt: memory that is short, misused or unknown is an error") {
    CHECK_THROWS_AS(DeviceMemory(settings().memory + 1, "too much"), kernels::BackendError);
    const size_t before = free_memory(0);
    {
        DeviceMemory some(1 << 20, "some");
        CHECK(free_memory(0) == before - (1 << 20));
        Stream stream;
        std::vector<std::byte> host(2 << 20);
        stream.copy_to_device(some.data(), host.data(), host.size());
        CHECK_THROWS_AS(stream.wait(), Violation);
        stream.copy_to_device(host.data(), host.data(), 1);
        CHECK_THROWS_AS(stream.wait(), Violation);
        stream.copy_to_host(host.data(), some.data(), 1);
        CHECK_THROWS_AS(stream.wait(), Violation);
    }
    CHECK(free_memory(0) == before);
}

TEST_CASE("simt: integer and bit functions compute what the PTX manual defines") {
    CHECK(prmt(0x33221100u, 0x77665544u, 0x7531u) == 0x77553311u);
    CHECK(prmt(0x00008000u, 0u, 0x0009u) == 0x00000080u);
    CHECK(prmt_signs(0x00008000u, 0u, 0x0009u) == 0x000000ffu);
    CHECK(float_to_int_rn(2.5f) == 2);
    CHECK(float_to_int_rn(-3.5f) == -4);
    CHECK(float_to_int_rn(3e9f) == INT32_MAX);
    CHECK(float_to_int_rn(std::nanf("")) == 0);
}

TEST_CASE("simt: half arithmetic rounds once") {
    const uint32_t one = pack_f16(1.0f, 1.0f), tiny = pack_f16(0x1p-11f, 0x1.8p-11f);
    // 1 + 2^-11 is halfway and goes to even; a bit more goes up.
    CHECK(h2_fma(one, one, tiny) == pack_f16(1.0f, 1.0f + 0x1p-10f));
    CHECK(h2_sub(pack_f16(1027, 3), pack_f16(1024, 5)) == pack_f16(3, -2));
    CHECK(h2_mul(pack_f16(300, 0.5f), pack_f16(300, 0.25f)) == pack_f16(INFINITY, 0.125f));
    // (1 + 2^-10)^2 - 1 = 2^-9 + 2^-20, kept by the single rounding.
    const float a = 1.0f + 0x1p-10f;
    CHECK(h2_fma(pack_f16(a, 0), pack_f16(a, 0), pack_f16(-1, 0)) == pack_f16(0x1p-9f + 0x1p-20f, 0));
}
