#include "kernels/cuda/runtime/probe.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/runtime/tensor_rate.h"

namespace runnel::kernels::cuda {
namespace {

constexpr size_t kPinned = size_t{16} << 20;  // bytes copied to the device at a time

// Fills device memory with random bytes, because zeros may be transferred at another speed.
void fill_with_noise(Stream &stream, const DeviceMemory &memory, uint64_t seed) {
    const PinnedMemory piece(std::min(kPinned, memory.size()));
    std::mt19937_64 random(seed);
    for (size_t i = 0; i + 8 <= piece.size(); i += 8) {
        const uint64_t word = random();
        std::memcpy(piece.data() + i, &word, 8);
    }
    for (size_t at = 0; at < memory.size(); at += piece.size())
        stream.copy_to_device(memory.data() + at, piece.data(), std::min(piece.size(), memory.size() - at));
    stream.wait();
}

// Seconds of the fastest of `repeats` runs of the work enqueued by `work`, after one untimed run.
template <class F>
double best_seconds(Stream &stream, int repeats, F work) {
    Event from, to;
    work();
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < repeats; ++i) {
        stream.record(from);
        work();
        stream.record(to);
        stream.wait();
        best = std::min(best, static_cast<double>(Event::milliseconds(from, to)) / 1e3);
    }
    return best;
}

}  // namespace

double copy_bandwidth(int device, size_t bytes, int repeats) {
    use_device(device);
    Stream stream;
    // On a small or busy device, use a third of the free memory.
    bytes = std::max<size_t>(std::min(bytes, free_memory(device) / 3), size_t{1} << 12) / 8 * 8;
    const DeviceMemory from(bytes, "a copy"), to(bytes, "a copy");
    fill_with_noise(stream, from, 1);
    const double seconds =
        best_seconds(stream, repeats, [&] { stream.copy_on_device(to.data(), from.data(), bytes); });
    return 2 * static_cast<double>(bytes) / seconds;
}

double tensor_rate(int device, int rounds) {
    use_device(device);
    Stream stream;
    const auto kernel = tensor_rate_kernel();
    prepare(kernel.handle, 0);
    const int blocks = properties(device).multiprocessors * std::max(1, resident_blocks(kernel.handle, 0));
    const DeviceMemory out(static_cast<size_t>(blocks) * kRateThreads * sizeof(float), "sums");
    const auto measure = [&](int count, int repeats) {
        return best_seconds(stream, repeats, [&] {
            launch(stream, kernel, {static_cast<uint32_t>(blocks)}, {out.as<float>(), count});
        });
    };
    // Where a few rounds take long already, as in the emulator of the tests, more would only cost time.
    const int few = std::min(rounds, 64);
    double seconds = measure(few, 1);
    if (seconds < 1e-3)
        seconds = measure(rounds, 3);
    else
        rounds = few;
    return tensor_rate_operations(static_cast<double>(blocks) * kRateThreads / 32, rounds) / seconds;
}

uint64_t changed_words(int device, size_t bytes, uint64_t seed) {
    use_device(device);
    Stream stream;
    bytes = std::max<size_t>(bytes / 16 * 8, 8);  // two halves
    const DeviceMemory first(bytes, "a test of memory"), second(bytes, "a test of memory");
    const PinnedMemory piece(std::min(kPinned, bytes) / 8 * 8);
    const size_t words = piece.size() / 8;
    const auto pieces = [&](auto f) {
        std::mt19937_64 random(seed);
        for (size_t at = 0; at < bytes; at += piece.size()) f(random, at, std::min(words, (bytes - at) / 8));
    };
    pieces([&](std::mt19937_64 &random, size_t at, size_t count) {
        for (size_t i = 0; i < count; ++i) piece.as<uint64_t>()[i] = random();
        stream.copy_to_device(first.data() + at, piece.data(), count * 8);
        stream.wait();
    });
    stream.copy_on_device(second.data(), first.data(), bytes);
    uint64_t changed = 0;
    pieces([&](std::mt19937_64 &random, size_t at, size_t count) {
        stream.copy_to_host(piece.data(), second.data() + at, count * 8);
        stream.wait();
        for (size_t i = 0; i < count; ++i) changed += piece.as<uint64_t>()[i] != random();
    });
    return changed;
}

}  // namespace runnel::kernels::cuda
