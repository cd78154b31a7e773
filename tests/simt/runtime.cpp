// kernels/cuda/runtime.h and devices.h on the emulator.
//
// A stream is a queue that runs when somebody waits for it, so that memory that the host changes, frees or
// reads before it waited is found wrong.
#include "kernels/cuda/runtime.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/cuda/devices.h"
#include "tests/simt/block.h"
#include "tests/simt/memory.h"

namespace runnel::simt {

namespace {

std::vector<LaunchReport> &reports() {
    static std::vector<LaunchReport> all;
    return all;
}

}  // namespace

static HostTraffic &host_traffic() {
    static HostTraffic all;
    return all;
}

static void run_kernel(const kernels::cuda::KernelHandle &kernel, const kernels::cuda::LaunchShape &shape,
                       const std::vector<std::byte> &params) {
    memory().take_traffic();
    Launch(kernel, shape, params.data(), params.size()).run();
    reports().push_back({kernel.name, shape.blocks, memory().take_traffic()});
}

HostTraffic take_host_traffic() {
    const std::lock_guard hold(device_lock());
    return std::exchange(host_traffic(), {});
}

std::vector<LaunchReport> take_reports() {
    const std::lock_guard hold(device_lock());
    return std::move(reports());
}

size_t take_peak_memory() {
    const std::lock_guard hold(device_lock());
    return memory().take_peak();
}

bool emulated() {
    return true;
}

}  // namespace runnel::simt

namespace runnel::kernels::cuda {

using simt::device_lock;
using simt::memory;

// --- devices ---------------------------------------------------------------------------------------------

Devices find_devices() noexcept {
    const size_t bytes = simt::settings().memory;
    Devices devices{true, {}, simt::settings().why_none};
    for (int i = 0; i < simt::settings().devices; ++i)
        devices.found.push_back({"emulated device", "cuda", bytes, free_memory(i)});
    return devices;
}

// Every call that gives the device work, or waits for it.
static void expect_alive(const char *what) {
    simt::Settings &now = simt::settings();
    const std::lock_guard hold(device_lock());
    if (now.fail_at > 0 && ++now.calls >= now.fail_at)
        throw BackendError(BackendError::Kind::Failed,
                           std::string("CUDA: ") + what + ": unspecified launch failure");
}

DeviceProperties properties(int) {
    return {"emulated device",       simt::settings().major,
            simt::settings().minor,  simt::settings().multiprocessors,
            simt::settings().memory, simt::settings().shared_per_block,
            size_t{32} << 20};
}

size_t free_memory(int device) {
    const size_t taken = memory().allocated() + (device == 0 ? simt::settings().first_busy : 0);
    return simt::settings().memory - std::min(taken, simt::settings().memory);
}

static thread_local int current_device = 0;
void use_device(int device) {
    current_device = device;
}

// --- memory ----------------------------------------------------------------------------------------------

DeviceMemory::DeviceMemory(size_t bytes, const char *name) : size_(bytes) {
    const std::lock_guard hold(device_lock());
    bytes_.reset(memory().allocate(bytes, name, false));
}

void DeviceMemory::Free::operator()(void *p) const noexcept {
    const std::lock_guard hold(device_lock());
    memory().free(p);
}

PinnedMemory::PinnedMemory(size_t bytes) : size_(bytes) {
    const std::lock_guard hold(device_lock());
    bytes_.reset(memory().allocate(bytes, "pinned memory", true));
}

void PinnedMemory::Free::operator()(void *p) const noexcept {
    const std::lock_guard hold(device_lock());
    memory().free(p);
}

void name_region(const void *begin, size_t bytes, const char *name, Region kind) {
    const std::lock_guard hold(device_lock());
    simt::Allocation &allocation = memory().range(begin, bytes, "name_region");
    allocation.name_region(static_cast<size_t>(static_cast<const std::byte *>(begin) - allocation.begin()),
                           bytes, name, kind);
}

// --- streams ---------------------------------------------------------------------------------------------

using Work = std::function<void()>;

namespace {

struct Queue {
    std::deque<Work> work;

    // Runs what comes first until `done`, or all of it. What follows a failure is dropped.
    template <class Done>
    void run_until(Done done) {
        const std::lock_guard hold(device_lock());
        try {
            while (!done() && !work.empty()) {
                const Work next = std::move(work.front());
                work.pop_front();
                next();
            }
        } catch (...) {
            work.clear();
            throw;
        }
    }
};

struct Mark {
    std::weak_ptr<Queue> queue;
    bool done = false;
    std::chrono::steady_clock::time_point time;

    void bring_about() const {
        if (const auto q = queue.lock()) q->run_until([this] { return done; });
    }
};

}  // namespace

struct Event::Implementation {
    std::shared_ptr<Mark> mark;  // of the last record()
};

Event::Event() : implementation_(new Implementation{}) {}
void Event::Delete::operator()(Implementation *p) const noexcept {
    delete p;
}
bool Event::done() const {
    return !get().mark || get().mark->done;
}
void Event::wait() const {
    expect_alive("running kernels");
    if (get().mark) get().mark->bring_about();
}
float Event::milliseconds(const Event &from, const Event &to) {
    return std::chrono::duration<float, std::milli>(to.get().mark->time - from.get().mark->time).count();
}

struct Graph::Implementation {
    std::vector<Work> work;
    int64_t kernels;
};

int64_t Graph::kernels() const {
    return get().kernels;
}

void Graph::Delete::operator()(Implementation *p) const noexcept {
    delete p;
}

struct Stream::Implementation {
    std::shared_ptr<Queue> queue = std::make_shared<Queue>();
    int device = current_device;
    bool capturing = false;
    std::vector<Work> captured;
    int64_t launched = 0, captured_kernels = 0;

    void add(Work work) {
        const std::lock_guard hold(device_lock());
        if (capturing)
            captured.push_back(std::move(work));
        else
            queue->work.push_back(std::move(work));
    }
};

Stream::Stream() : implementation_(new Implementation{}) {}
void Stream::Delete::operator()(Implementation *p) const noexcept {
    delete p;
}

void Stream::copy_to_device(void *device, const void *host, size_t bytes) {
    expect_alive("copying to the device");
    get().add([=] {
        ++simt::host_traffic().to_device;
        simt::host_traffic().bytes_to_device += bytes;
        memory().mark_written(device, bytes);
        std::memcpy(device, host, bytes);
    });
}

void Stream::copy_to_host(void *host, const void *device, size_t bytes) {
    expect_alive("copying from the device");
    get().add([=] {
        ++simt::host_traffic().to_host;
        simt::host_traffic().bytes_to_host += bytes;
        memory().expect_written(device, bytes, "a copy to the host");
        std::memcpy(host, device, bytes);
    });
}

void Stream::copy_on_device(void *to, const void *from, size_t bytes) {
    get().add([=] {
        memory().copy_marks(to, from, bytes);
        std::memmove(to, from, bytes);
    });
}

void Stream::fill(void *device, int byte, size_t bytes) {
    get().add([=] {
        memory().mark_written(device, bytes);
        std::memset(device, byte, bytes);
    });
}

void Stream::record(Event &event) {
    auto mark = std::make_shared<Mark>();
    mark->queue = get().queue;
    event.get().mark = mark;
    get().add([mark] {
        mark->done = true;
        mark->time = std::chrono::steady_clock::now();
    });
}

void Stream::wait_for(const Event &event) {
    if (const auto mark = event.get().mark) get().add([mark] { mark->bring_about(); });
}

void Stream::wait() {
    expect_alive("running kernels");
    if (get().capturing) throw simt::Violation("the host waits for a stream that records a graph");
    ++simt::host_traffic().waits;
    get().queue->run_until([] { return false; });
}

void Stream::begin_capture() {
    get().capturing = true;
    get().captured.clear();
    get().captured_kernels = 0;
}

Graph Stream::end_capture() {
    get().capturing = false;
    return Graph(new Graph::Implementation{std::move(get().captured), get().captured_kernels});
}

void Stream::replay(const Graph &graph) {
    expect_alive("launching a graph");
    for (const Work &work : graph.get().work) get().add(work);
    get().launched += graph.kernels();
}

void Stream::launch(const KernelHandle &kernel, const LaunchShape &shape, const void *params, size_t bytes) {
    expect_alive("launching a kernel");
    if (get().device != current_device) throw simt::Violation("a stream is used that is another device's");
    const auto *begin = static_cast<const std::byte *>(params);
    get().add([kernel, shape, copy = std::vector<std::byte>(begin, begin + bytes)] {
        simt::run_kernel(kernel, shape, copy);
    });
    ++(get().capturing ? get().captured_kernels : get().launched);
}

int64_t Stream::launched() const {
    return get().launched;
}

void prepare(const KernelHandle &kernel, SharedBytes shared) {
    const size_t bytes = shared.on(simt::settings().is_turing()), most = simt::settings().shared_per_block;
    if (bytes > most) throw too_little_shared(kernel, bytes, most);
}

int resident_blocks(const KernelHandle &, SharedBytes) {
    return simt::settings().resident_blocks;
}

}  // namespace runnel::kernels::cuda
