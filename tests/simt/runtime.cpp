// kernels/cuda/runtime/runtime.h and devices.h on the emulator.
//
// A stream is a queue that runs when the host waits for it, so that memory which the host changes, frees or
// reads too early is found. Operations that a device rejects while a graph is recorded are Violations.
#include "kernels/cuda/runtime/runtime.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/runtime/devices.h"
#include "tests/simt/block.h"
#include "tests/simt/library_work.h"
#include "tests/simt/memory.h"
#include "tests/simt/observer.h"

namespace runnel::simt {

namespace {

std::vector<LaunchReport> &reports() {
    static std::vector<LaunchReport> all;
    return all;
}

}  // namespace

static LaunchObserver *launch_observer = nullptr;  // under device_lock()

void observe_launches(LaunchObserver *observer) {
    const std::lock_guard hold(device_lock());
    launch_observer = observer;
}

static HostTraffic &host_traffic() {
    static HostTraffic all;
    return all;
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
    Devices devices{true, {}, simt::settings().why_none};
    for (int i = 0; i < simt::settings().devices; ++i)
        devices.found.push_back(
            {"emulated device", "cuda", simt::settings().memory_at(i), 0, properties(i).bandwidth});
    return devices;
}

static bool is_lost() {
    return simt::settings().fail_at > 0 && simt::settings().calls >= simt::settings().fail_at;
}

// Called by every function that gives the device work or waits for it. Fails if the device is lost.
static void expect_alive(const char *what) {
    simt::Settings &now = simt::settings();
    const std::lock_guard hold(device_lock());
    if (now.fail_at > 0 && ++now.calls >= now.fail_at)
        throw BackendError(BackendError::Kind::Failed,
                           std::string("CUDA: ") + what + ": unspecified launch failure");
}

DeviceProperties properties(int device) {
    const simt::Settings &now = simt::settings();
    return {"emulated device",
            now.major,
            now.minor,
            now.multiprocessors,
            now.memory_at(device),
            now.shared_per_block,
            now.shared_per_multiprocessor,
            size_t{32} << 20,
            now.bandwidth_of.empty() ? 0 : now.bandwidth_of.at(static_cast<size_t>(device))};
}

std::string compile_note(int) {
    const simt::Settings &now = simt::settings();
    return now.code == 0 ? "" : compile_note(std::array{now.code}, now.major, now.minor);
}

static thread_local int current_device = 0;
void use_device(int device) {
    const std::lock_guard hold(device_lock());
    if (device == simt::settings().broken_device)
        throw BackendError(BackendError::Kind::Failed,
                           "CUDA: selecting the device: CUDA-capable device(s) is/are busy or unavailable");
    simt::settings().opened.insert(device);
    current_device = device;
}

size_t free_memory(int device) {
    use_device(device);
    const size_t all = simt::settings().memory_at(device);
    const size_t taken = memory().allocated(device) + (device == 0 ? simt::settings().first_busy : 0);
    return all - std::min(taken, all);
}

bool can_copy_directly(int device, int from) {
    if (device == from) return true;
    if (!simt::settings().peers) return false;
    use_device(device);
    return true;
}

// --- recording -------------------------------------------------------------------------------------------

namespace {

// Per thread, like cudaStreamCaptureModeThreadLocal.
struct Recording {
    int streams = 0;      // that record a graph
    std::string spoiled;  // the operation that invalidated it
};
thread_local Recording recording;

void expect_no_recording(const char *what) {
    if (recording.streams > 0) throw simt::Violation(std::string(what) + " while the thread records a graph");
}

}  // namespace

// --- memory ----------------------------------------------------------------------------------------------

// Freeing cannot report an error, so it invalidates the graph instead.
static void free_memory_at(void *p) noexcept {
    if (recording.streams > 0) recording.spoiled = "memory is freed while the thread records a graph";
    const std::lock_guard hold(device_lock());
    memory().free(p);
}

DeviceMemory::DeviceMemory(size_t bytes, const char *name) : size_(bytes) {
    expect_no_recording("memory is allocated");
    const std::lock_guard hold(device_lock());
    bytes_.reset(memory().allocate(bytes, name, false, current_device));
}

void DeviceMemory::Free::operator()(void *p) const noexcept {
    free_memory_at(p);
}

PinnedMemory::PinnedMemory(size_t bytes) : size_(bytes) {
    expect_no_recording("memory is pinned");
    const std::lock_guard hold(device_lock());
    bytes_.reset(memory().allocate(bytes, "pinned memory", true, current_device));
}

void PinnedMemory::Free::operator()(void *p) const noexcept {
    free_memory_at(p);
}

void name_region(const void *begin, size_t bytes, const char *name, Region kind) {
    const std::lock_guard hold(device_lock());
    simt::Allocation &allocation = memory().range(begin, bytes, "name_region");
    allocation.name_region(static_cast<size_t>(static_cast<const std::byte *>(begin) - allocation.begin()),
                           bytes, name, kind);
}

// --- streams ---------------------------------------------------------------------------------------------

namespace {

// An item of a stream: a launch, a step of a library that may have to wait for other devices, or something else.
struct Work {
    std::shared_ptr<const simt::LaunchCall> launch;
    std::function<void()> other;
    std::function<bool()> step = {};
};

constexpr std::chrono::microseconds kPause{50};    // before a step runs again
constexpr std::chrono::seconds kLongestPause{20};  // then it waits for ever

// While it exists, work runs as work of `device`.
class WorkOn {
  public:
    explicit WorkOn(int device) : before_(memory().work_on(device)) {}
    ~WorkOn() { memory().work_on(before_); }

  private:
    const int before_;
};

struct Queue;
// Those that have ever had a step. Under device_lock().
std::vector<std::weak_ptr<Queue>> &queues_with_steps() {
    static std::vector<std::weak_ptr<Queue>> all;
    return all;
}
void run_others(const Queue &waiting);

struct Queue {
    const int device = current_device;
    std::deque<Work> work;
    std::unique_ptr<simt::Launch> begun;  // first of `work`: a dependent launch that already runs
    std::exception_ptr error;  // of work that ran while another stream waited; thrown by the next wait
    std::optional<std::chrono::steady_clock::time_point> stuck;  // since when the first of `work` waits

    // Runs items from the front until `done`, or all, or until a step has waited for others for `patience`; false then.
    // Items after a failure are dropped. While a step waits, the streams that it may wait for run, too, as those of other
    // devices do without their hosts, and other threads use their devices.
    template <class Done>
    bool run_for(std::chrono::microseconds patience, Done done) {
        using Clock = std::chrono::steady_clock;
        for (const auto end = Clock::now() + patience;;) {
            {
                const std::lock_guard hold(device_lock());
                const WorkOn on(device);
                if (run_ready(done)) return true;
                if (!stuck) stuck = Clock::now();
                if (Clock::now() - *stuck > kLongestPause)
                    throw simt::Violation("a stream waits for work of other devices that does not come");
                run_others(*this);
            }
            if (Clock::now() >= end) return false;
            std::this_thread::sleep_for(kPause);
        }
    }
    template <class Done>
    void run_until(Done done) {
        while (!run_for(kLongestPause, done)) continue;
    }

    // Returns false if a step must wait.
    template <class Done>
    bool run_ready(Done done) {
        if (error) std::rethrow_exception(std::exchange(error, nullptr));
        try {
            while (!done() && !work.empty()) {
                if (work.front().step && !work.front().step()) return false;
                const Work next = std::move(work.front());
                work.pop_front();
                stuck.reset();
                if (next.launch)
                    run(*next.launch);
                else if (next.other)
                    next.other();
            }
        } catch (...) {
            work.clear();
            begun.reset();
            throw;
        }
        return true;
    }

    void run(const simt::LaunchCall &call) {
        const auto now = begun ? std::move(begun) : std::make_unique<simt::Launch>(call);
        const auto *behind = work.empty() ? nullptr : work.front().launch.get();
        if (behind && behind->shape.dependent) begun = std::make_unique<simt::Launch>(*behind, now.get());
        simt::LaunchObserver *const observer = simt::launch_observer;
        if (observer) observer->before(call);
        now->run(begun.get());
        if (observer) observer->after(call);
        simt::reports().push_back({call.kernel.name, call.shape.blocks, now->traffic()});
    }
};

// Runs the other streams that have steps, up to their last step.
void run_others(const Queue &waiting) {
    std::erase_if(queues_with_steps(), [](const auto &queue) { return queue.expired(); });
    for (const std::weak_ptr<Queue> &one : queues_with_steps()) {
        const std::shared_ptr<Queue> queue = one.lock();
        if (queue.get() == &waiting) continue;
        const WorkOn on(queue->device);
        try {
            queue->run_ready([&] {
                return std::ranges::none_of(queue->work, [](const Work &w) { return w.step != nullptr; });
            });
        } catch (...) {
            queue->error = std::current_exception();
        }
    }
}

struct Mark {
    std::weak_ptr<Queue> queue;
    bool done = false;
    std::chrono::steady_clock::time_point time;

    void bring_about() const {
        if (const auto q = queue.lock()) q->run_until([this] { return done; });
    }
    bool bring_about(std::chrono::microseconds most) const {
        const auto q = queue.lock();
        return !q || q->run_for(most, [this] { return done; });
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
bool Event::wait(std::chrono::microseconds most) const {
    expect_alive("running kernels");
    return !get().mark || get().mark->bring_about(most);
}
float Event::milliseconds(const Event &from, const Event &to) {
    // A device's time always advances; a host's clock may not.
    const auto passed = std::max<std::chrono::steady_clock::duration>(
        to.get().mark->time - from.get().mark->time, std::chrono::nanoseconds(1));
    return std::chrono::duration<float, std::milli>(passed).count();
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
    bool capturing = false;
    std::vector<Work> captured;
    int64_t launched = 0, captured_kernels = 0;

    void add(std::function<void()> work) { add(Work{nullptr, std::move(work), {}}); }
    void add(Work work) {
        if (queue->device != current_device)
            throw simt::Violation("a stream is used that is another device's");
        const std::lock_guard hold(device_lock());
        if (capturing)
            captured.push_back(std::move(work));
        else
            queue->work.push_back(std::move(work));
    }
};

Stream::Stream() : implementation_(new Implementation{}) {}
// Finishes its work, as on a device. Errors can no longer be reported: the test ends.
void Stream::Delete::operator()(Implementation *p) const noexcept {
    const std::unique_ptr<Implementation> stream(p);
    if (stream->capturing) --recording.streams;
    {
        const std::lock_guard hold(device_lock());
        if (is_lost()) return;
    }
    try {
        stream->queue->run_until([] { return false; });
    } catch (const std::exception &e) {
        std::fprintf(stderr, "a stream ends with work that is wrong: %s\n", e.what());
        std::abort();
    }
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

void Stream::copy_from_device(void *to, int to_device, const void *from, int from_device, size_t bytes) {
    expect_alive("copying between devices");
    if (to_device != get().queue->device)
        throw simt::Violation("a copy between devices to another device's memory");
    get().add([=] {
        ++simt::host_traffic().peer_copies;
        simt::host_traffic().peer_bytes += bytes;
        memory().copy_marks(to, from, bytes, from_device);
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
    {
        const std::lock_guard hold(device_lock());
        ++simt::host_traffic().waits;
    }
    get().queue->run_until([] { return false; });
}

Capture::Capture(Stream &stream) : stream_(&stream) {
    Stream::Implementation &at = stream.get();
    if (at.capturing) throw simt::Violation("a stream records two graphs at a time");
    at.capturing = true;
    at.captured.clear();
    at.captured_kernels = 0;
    if (recording.streams++ == 0) recording.spoiled.clear();
}

// The recorded work.
static std::vector<Work> stop_recording(Stream &stream) {
    stream.get().capturing = false;
    --recording.streams;
    return std::move(stream.get().captured);
}

Capture::~Capture() {
    if (stream_) stop_recording(*stream_);
}

Graph Capture::end() {
    Stream &stream = *std::exchange(stream_, nullptr);
    std::vector<Work> work = stop_recording(stream);
    if (!recording.spoiled.empty()) throw simt::Violation(recording.spoiled);
    return Graph(new Graph::Implementation{std::move(work), stream.get().captured_kernels});
}

void Stream::replay(const Graph &graph) {
    expect_alive("launching a graph");
    for (const Work &work : graph.get().work) get().add(work);
    get().launched += graph.kernels();
}

namespace {

// Bytes of shared memory that prepare() allowed, by kernel and device. (Under device_lock().)
using Prepared = std::map<std::pair<const void *, int>, size_t>;
Prepared &prepared() {
    static Prepared all;
    return all;
}

// Checks that cudaLaunchKernelEx() would accept the launch.
void expect_launchable(const KernelHandle &kernel, const LaunchShape &shape, bool capturing) {
    constexpr size_t kAlwaysAllowed = 48 << 10;
    constexpr size_t kSharedStep =
        16;  // nvcc may read whole vectors of 16 bytes where a kernel uses some of them
    const std::lock_guard hold(device_lock());
    const auto found = prepared().find({kernel.entry, current_device});
    const bool known = found != prepared().end();
    const size_t bytes = shape.shared.on(simt::settings().is_turing());
    if (bytes % kSharedStep != 0)
        throw simt::Violation(std::string(kernel.name) + ": launched with " + std::to_string(bytes) +
                              " bytes of shared memory, which is no multiple of 16");
    if (capturing && !known)
        throw simt::Violation(std::string(kernel.name) + ": launched into a graph before prepare()");
    if (bytes > std::max(known ? found->second : 0, kAlwaysAllowed))
        throw simt::Violation(std::string(kernel.name) + ": launched with " + std::to_string(bytes) +
                              " bytes of shared memory, which no prepare() allowed");
    if (shape.dependent && simt::settings().major < 9)
        throw simt::Violation(std::string(kernel.name) + ": the device has no dependent launches");
}

}  // namespace

void Stream::launch(const KernelHandle &kernel, const LaunchShape &shape, const void *params, size_t bytes) {
    expect_alive("launching a kernel");
    expect_launchable(kernel, shape, get().capturing);
    const auto *begin = static_cast<const std::byte *>(params);
    get().add({std::make_shared<simt::LaunchCall>(kernel, shape, std::vector(begin, begin + bytes)), {}, {}});
    ++(get().capturing ? get().captured_kernels : get().launched);
}

int64_t Stream::launched() const {
    return get().launched;
}

void *Stream::native() const {
    return &get();
}

}  // namespace runnel::kernels::cuda

namespace runnel::simt {

int device_of_stream(void *native) {
    return static_cast<kernels::cuda::Stream::Implementation *>(native)->queue->device;
}

void add_step(void *native, std::function<bool()> step) {
    const std::lock_guard hold(device_lock());
    auto &stream = *static_cast<kernels::cuda::Stream::Implementation *>(native);
    if (stream.capturing) throw Violation("a library's work is recorded in a graph");
    stream.queue->work.push_back({nullptr, {}, std::move(step)});
    using kernels::cuda::queues_with_steps;
    if (std::ranges::none_of(queues_with_steps(), [&](const auto &q) { return q.lock() == stream.queue; }))
        queues_with_steps().push_back(stream.queue);
}

}  // namespace runnel::simt

namespace runnel::kernels::cuda {

void prepare(const KernelHandle &kernel, SharedBytes shared) {
    const size_t bytes = shared.on(simt::settings().is_turing()), most = simt::settings().shared_per_block;
    if (bytes > most) throw too_little_shared(kernel, bytes, most);
    expect_no_recording("a kernel is prepared");
    const std::lock_guard hold(device_lock());
    size_t &allowed = prepared()[{kernel.entry, current_device}];
    allowed = std::max(allowed, bytes);
}

bool can_depend(const KernelHandle &) {
    return simt::settings().has_wait();
}

int resident_blocks(const KernelHandle &, SharedBytes) {
    return simt::settings().resident_blocks;
}

}  // namespace runnel::kernels::cuda
