// Questions that only a device can answer, with one line and verdict each (scripts/gpu-check prints them if
// RUNNEL_DOUBTS is set). The emulator runs them, too, but its times are meaningless.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "gguf/half.h"
#include "kernels/cuda/experts/expert_places.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/runtime/switches.h"
#include "tests/gpu/device/doubt_kernels.h"
#include "tests/simt/buffer.h"
#include "tests/simt/simt.h"

using namespace runnel;
using namespace runnel::kernels::cuda;
using namespace runnel::tests::device;

namespace {

bool small() {
    return simt::emulated();
}

void answer(const char *name, const std::string &verdict, const std::string &detail) {
    if (std::getenv("RUNNEL_DOUBTS")) {
        std::printf("DOUBT|%s|%s|%s\n", name, verdict.c_str(), detail.c_str());
        std::fflush(stdout);
    }
}

std::string number(double value, const char *unit, int places = 2) {
    char text[60];
    std::snprintf(text, sizeof text, "%.*f %s", places, value, unit);
    return text;
}

// Seconds of the fastest of some runs.
template <class F>
double seconds(Stream &stream, F work) {
    Event from, to;
    work();
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < (small() ? 1 : 10); ++i) {
        stream.record(from);
        work();
        stream.record(to);
        stream.wait();
        best = std::min(best, static_cast<double>(Event::milliseconds(from, to)) / 1e3);
    }
    return best;
}

// A chain of launches, each of which adds one to the result of the previous one.
class Chain {
  public:
    struct Options {
        bool dependent = true, graph = true, mixed = false, apart = false;
        int spins = 0;
        bool late_trigger = false;
    };
    static int steps() { return small() ? 6 : 200; }

    Chain() : blocks_(small() ? 2 : properties(0).multiprocessors) {
        const size_t count = static_cast<size_t>(blocks_) * kDoubtThreads;
        const std::vector<uint32_t> zeros(4 * count, 0);
        weights_.emplace_back(stream, std::span(zeros), "weights", Region::Weights);
        for (int i = 0; i < 2; ++i) values_.emplace_back(stream, std::span(zeros).first(count), "values");
        for (const bool large : {false, true})
            prepare(step_kernel(large, false).handle, large ? kLargeShared : 0);
        // For these kernels, the driver chooses the division of L1 and shared memory.
        const char *before = std::getenv(kSwitchesVariable);
        const std::string kept = before ? before : "";
        setenv(kSwitchesVariable, "carveout", 1);
        for (const bool large : {false, true})
            prepare(step_kernel(large, true).handle, large ? kLargeShared : 0);
        if (before)
            setenv(kSwitchesVariable, kept.c_str(), 1);
        else
            unsetenv(kSwitchesVariable);
    }

    void enqueue(const Options &options) {
        for (int i = 0; i < steps(); ++i) {
            const bool large = options.mixed && i % 2 == 1;
            const auto kernel = step_kernel(large, options.apart);
            launch(stream, kernel,
                   {static_cast<uint32_t>(blocks_), large ? size_t{kLargeShared} : 0,
                    options.dependent && can_depend(kernel.handle)},
                   {values_[i % 2].data(), values_[(i + 1) % 2].data(), weights_.front().data(),
                    options.spins, options.late_trigger});
        }
    }
    // Seconds per launch; also whether every value of the last run is right.
    double time(const Options &options) {
        Graph graph;
        if (options.graph) {
            Capture capture(stream);
            enqueue(options);
            graph = capture.end();
        }
        const double all = seconds(stream, [&] {
            stream.fill(values_[0].data(), 0, size_t{kDoubtThreads} * blocks_ * sizeof(uint32_t));
            if (options.graph)
                stream.replay(graph);
            else
                enqueue(options);
        });
        const std::vector<uint32_t> end = values_[static_cast<size_t>(steps() % 2)].read();
        right = std::ranges::all_of(end, [](uint32_t v) { return v == static_cast<uint32_t>(steps()); });
        return all / steps();
    }

    Stream stream;
    bool right = false;

  private:
    const int blocks_;
    std::vector<simt::Buffer<uint32_t>> weights_, values_;
};

std::string microseconds(double seconds_each) {
    return number(seconds_each * 1e6, "us");
}

std::string faster(double with, double without) {
    return with < 0.98 * without ? "pays" : with > 1.02 * without ? "COSTS" : "no difference";
}

// One mma with two products, (first)^2 + left * right, on the device.
class TwoProducts {
  public:
    TwoProducts() { prepare(alignment_kernel().handle, 0); }
    float sum(float first, float left, float right) {
        std::vector<uint32_t> a(128, 0), b(64, 0);
        a[0] = half(first) | half(left) << 16;
        b[0] = half(first) | half(right) << 16;
        const simt::Buffer<uint32_t> rows(stream_, std::span<const uint32_t>(a), "a"),
            columns(stream_, std::span<const uint32_t>(b), "b");
        const simt::Buffer<float> c(stream_, size_t{128}, "c");
        launch(stream_, alignment_kernel(), {1, 0}, {rows.data(), columns.data(), c.data()});
        return c.read(0, 1)[0];
    }

  private:
    static uint32_t half(float x) { return gguf::f32_to_f16(x); }
    Stream stream_;
};

}  // namespace

TEST_CASE("doubts: how high is the bandwidth of reads alone?") {
    Stream stream;
    prepare(read_kernel().handle, 0);
    const size_t piece = size_t{8} * kDoubtThreads * 16;
    const size_t bytes = small() ? 4 * piece : std::min(size_t{4} << 30, free_memory(0) / 2) / piece * piece;
    const DeviceMemory data(bytes, "data"), out(4, "out");
    name_region(data.data(), bytes, "data", Region::Weights);
    stream.fill(data.data(), 0x5a, bytes);
    stream.fill(out.data(), 0, 4);
    const auto blocks = static_cast<uint32_t>(properties(0).multiprocessors *
                                              std::max(1, resident_blocks(read_kernel().handle, 0)));
    const double time = seconds(stream, [&] {
        launch(stream, read_kernel(), {blocks, 0},
               {data.data(), static_cast<int64_t>(bytes / 16), out.as<uint32_t>()});
    });
    CHECK(time > 0);
    answer(
        "read bandwidth", "measured",
        number(static_cast<double>(bytes) / time / 1e9, "GB/s", 0) + " of reads, 32 KB per block in flight");
}

TEST_CASE("doubts: do reads from L1 wait for those of a stream beside them?") {
    Stream stream;
    prepare(beside_kernel().handle, kBesideShared);
    const size_t piece = size_t{4} * kDoubtThreads * 16;
    const size_t bytes = small() ? 8 * piece : std::min(size_t{2} << 30, free_memory(0) / 2) / piece * piece;
    const DeviceMemory data(bytes, "data"), out(4, "out");
    name_region(data.data(), bytes, "data", Region::Weights);
    stream.fill(data.data(), 0x5a, bytes);
    std::vector<uint32_t> numbers(kTableNumbers);
    constexpr uint32_t kLine = 32, kLines = kTableNumbers / kLine;
    for (uint32_t i = 0; i < numbers.size(); ++i)
        numbers[i] = (5 * (i / kLine) + 3) % kLines * kLine + i % kLine;
    const simt::Buffer<uint32_t> table(stream, std::span<const uint32_t>(numbers), "table");
    const auto blocks = static_cast<uint32_t>(
        properties(0).multiprocessors * std::max(1, resident_blocks(beside_kernel().handle, kBesideShared)));
    const auto time = [&](bool from_shared, int32_t reads) {
        return seconds(stream, [&] {
            launch(stream, beside_kernel(), {blocks, kBesideShared},
                   {data.data(), static_cast<int64_t>(bytes / 16), table.data(), out.as<uint32_t>(),
                    from_shared, reads});
        });
    };
    constexpr int32_t kReads = 8;
    const double alone = time(true, 0), l1 = time(false, kReads), shared = time(true, kReads);
    CHECK(alone > 0);
    const auto rate = [&](double t) { return number(static_cast<double>(bytes) / t / 1e9, "GB/s", 0); };
    answer("reads beside a stream", l1 > 1.1 * shared ? "wait in L1" : "do not wait in L1",
           "a stream of " + rate(alone) + "; with eight reads of a line after each 2 KB " + rate(l1) +
               " if they are from L1, " + rate(shared) + " if from shared memory");
}

TEST_CASE("doubts: does a kernel read host memory as fast as copies do?") {
    Stream stream;
    prepare(fetch_experts_kernel().handle, 0);
    constexpr int32_t kExperts = 16;
    const size_t each = small() ? 4096 : size_t{4} << 20;
    const PinnedMemory host(kExperts * each);
    std::fill_n(host.data(), host.size(), std::byte{0x5a});
    const simt::Buffer<uint8_t> places(stream, std::vector<uint8_t>(host.size()), "places");
    std::vector<FetchedExpert> list;
    for (int32_t i = 0; i < kExperts; ++i) list.push_back({i, i});
    const simt::Buffer<FetchedExpert> fetched(stream, list, "fetched");
    const simt::Buffer<int32_t> count(stream, std::vector<int32_t>{kExperts}, "count");
    FetchExpertsParams params{};
    params.part[params.parts++] = {host.data(), reinterpret_cast<std::byte *>(places.data()),
                                   static_cast<int64_t>(each)};
    params.fetched = fetched.data(), params.fetched_count = count.data();
    const auto blocks = static_cast<uint32_t>(std::max<size_t>(1, std::min<size_t>(each / 4096, 512)));
    const double kernel = seconds(stream, [&] {
        launch(stream, fetch_experts_kernel(), {blocks, 0}, params);
    });
    CHECK(std::ranges::all_of(places.read(), [](uint8_t byte) { return byte == 0x5a; }));
    const double copy =
        seconds(stream, [&] { stream.copy_to_device(places.data(), host.data(), host.size()); });
    const auto rate = [&](double time) {
        return number(static_cast<double>(host.size()) / time / 1e9, "GB/s", 1);
    };
    answer("experts fetched by a kernel", kernel < 1.15 * copy ? "as fast as copies" : "SLOWER",
           rate(kernel) + " of host memory, copies " + rate(copy));
}

TEST_CASE("doubts: are dependent launches right, and how fast are they?") {
    Chain chain;
    const double plain = chain.time({.dependent = false});
    CHECK(chain.right);
    const double dependent = chain.time({});
    const bool right = chain.right;
    CHECK(right);
    const double loose = chain.time({.graph = false});
    CHECK(chain.right);
    const bool possible = can_depend(step_kernel(false, false).handle);
    answer("launches recorded as dependent", right ? "right" : "WRONG",
           possible ? std::to_string(Chain::steps()) + " launches in a graph gave what they should"
                    : std::string("this device, or this build, has none"));
    answer("edge of a launch", possible ? faster(dependent, plain) : "measured",
           microseconds(plain) + " in a graph, " + microseconds(dependent) + " dependent, " +
               microseconds(loose) + " without a graph");
}

TEST_CASE("doubts: is one split of shared memory and L1 faster than one per kernel?") {
    Chain chain;
    const double same = chain.time({.mixed = true});
    CHECK(chain.right);
    const double each = chain.time({.mixed = true, .apart = true});
    CHECK(chain.right);
    answer("carve-out", faster(same, each),
           microseconds(same) + " a launch with one for all, " + microseconds(each) +
               " with the driver's choice");
}

TEST_CASE("doubts: where should the trigger of a dependent launch stand?") {
    Chain chain;
    const int spins = small() ? 2 : 1000;
    const double early = chain.time({.spins = spins});
    CHECK(chain.right);
    const double late = chain.time({.spins = spins, .late_trigger = true});
    CHECK(chain.right);
    answer("early trigger", faster(early, late),
           microseconds(early) + " a launch behind the wait, " + microseconds(late) + " at the end");
}

TEST_CASE("doubts: what does a barrier of the grid cost?") {
    Stream stream;
    prepare(barrier_kernel().handle, 0);
    const DeviceMemory arrived(4, "arrived");
    // (The emulator runs blocks one after the other.)
    const auto blocks = static_cast<uint32_t>(small() ? 1 : properties(0).multiprocessors);
    const int rounds = small() ? 4 : 1000;
    const double time = seconds(stream, [&] {
        stream.fill(arrived.data(), 0, 4);
        launch(stream, barrier_kernel(), {blocks, 0}, {arrived.as<uint32_t>(), rounds});
    });
    CHECK(time > 0);
    answer("barrier of the grid", "measured", microseconds(time / rounds) + " with one counter");
}

TEST_CASE("doubts: does a product with zero change the sum of an mma?") {
    TwoProducts products;
    // 2^-12 * 2^-12 + zero * beside. The sum is 2^-24 if the second product contributes nothing, as attention requires
    // for cells that are not visible.
    const auto sum = [&](float beside, float zero) { return products.sum(0x1p-12f, zero, beside); };
    CHECK(sum(0, 0) == 0x1p-24f);
    bool moved = false;
    for (const float beside : {1.0f, 2048.0f, 65504.0f, -65504.0f})
        for (const float zero : {0.0f, -0.0f}) moved = moved || sum(beside, zero) != 0x1p-24f;
    if (simt::emulated()) CHECK(!moved);
    answer("zero products in an mma", moved ? "NOTE" : "right",
           moved ? "they move the alignment: cells that are not seen may change last bits of attention"
                 : "they change no bit of the sum");
}

TEST_CASE("doubts: does an mma round its sum or truncate it?") {
    // 1 + 3/4 of the last place of 1.
    constexpr float kDown = 1, kUp = 1 + 0x1p-23f;
    const float sum = TwoProducts().sum(1, 0x1.8p-11f, 0x1p-13f);
    if (simt::emulated()) CHECK(sum == kUp);
    answer("sums of an mma", sum == kUp ? "right" : "NOTE",
           sum == kUp ? "rounded to nearest, as in the emulator"
           : sum == kDown
               ? "truncated: sums of F16 and BF16 matrices and of attention differ from the emulator's by "
                 "about 1e-5"
               : "neither rounded to nearest nor truncated: " + number(sum - 1.0, "above 1", 12));
}
