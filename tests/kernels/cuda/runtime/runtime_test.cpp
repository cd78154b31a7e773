// The interface below the backend, kernels/cuda/runtime/runtime.h, on the emulator and on a real device.
#include "kernels/cuda/runtime/runtime.h"

#include <doctest/doctest.h>

#include <numeric>
#include <stdexcept>
#include <vector>

#include "kernels/cuda/steps/elementwise.h"
#include "tests/simt/buffer.h"
#include "tests/simt/run_kernel.h"

using namespace runnel;
using namespace runnel::kernels::cuda;

namespace {

std::vector<float> counting(size_t count) {
    std::vector<float> values(count);
    std::iota(values.begin(), values.end(), 0.0f);
    return values;
}

}  // namespace

TEST_CASE("runtime: preparing a kernel with less shared memory does not affect other backends") {
    constexpr size_t kMuch = 80 << 10, kLess = 60 << 10, kLittle = 0;
    const KernelHandle kernel = softcap_kernel().handle;
    Stream stream;
    const std::vector<float> zeros(64);
    const simt::Buffer<float> x(stream, std::span(zeros), "x");
    for (const size_t others : {kLess, kLittle}) {
        CAPTURE(others);
        prepare(kernel, kMuch);
        prepare(kernel, others);
        launch(stream, softcap_kernel(), {1, kMuch, false}, {x.data(), 64, 3.0f});
        CHECK(x.read() == zeros);
    }
}

TEST_CASE("runtime: a recording that is not ended leaves the stream as it was") {
    Stream stream;
    const std::vector<float> zeros(64), values = counting(64);
    const simt::Buffer<float> from(stream, std::span(values), "from");
    const simt::Buffer<float> to(stream, std::span(zeros), "to");
    const auto record = [&] { stream.copy_on_device(to.data(), from.data(), 64 * sizeof(float)); };
    const auto fail = [&] {
        const Capture capture(stream);
        record();
        throw std::runtime_error("in the middle of a recording");
    };
    CHECK_THROWS_AS(fail(), std::runtime_error);
    CHECK(to.read() == zeros);
    const DeviceMemory more(1 << 20, "allowed again");
    Capture capture(stream);
    record();
    const Graph graph = capture.end();
    CHECK(to.read() == zeros);
    stream.replay(graph);
    CHECK(to.read() == values);
}

TEST_CASE("runtime: a stream ends when its work has") {
    constexpr size_t kCount = 1 << 18;
    Stream reader;
    const simt::Buffer<float> to(reader, kCount, "to");
    const PinnedMemory from(kCount * sizeof(float));
    const std::vector<float> values = counting(kCount);
    std::copy(values.begin(), values.end(), from.as<float>());
    {
        Stream writer;
        writer.copy_to_device(to.data(), from.data(), kCount * sizeof(float));
    }
    std::fill_n(from.as<float>(), kCount, -1.0f);
    CHECK(to.read() == values);
}
