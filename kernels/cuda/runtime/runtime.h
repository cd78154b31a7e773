// The part of the CUDA runtime that the host code uses: memory, streams, events, launches, graphs.
//
// There are two implementations: runtime.cpp (on the static CUDA runtime), linked into the program, and the
// emulator of tests/simt/, linked into the tests, where the same kernels run on the host and every access is
// checked. Errors are BackendError with one line that names what failed; OutOfMemory when memory is short.
// Nothing here is thread-safe unless stated; different threads may use different streams.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>

#include "kernels/backend.h"
#include "kernels/cuda/runtime/devices.h"  // free_memory()
#include "kernels/cuda/runtime/kernel.h"

namespace runnel::kernels::cuda {

// --- devices ---------------------------------------------------------------------------------------------

struct DeviceProperties {
    std::string name;
    int major = 0, minor = 0;  // compute capability
    int multiprocessors = 0;
    size_t memory_total = 0;
    size_t shared_per_block = 0;           // bytes, the most a kernel may use
    size_t shared_per_multiprocessor = 0;  // bytes
    size_t l2_bytes = 0;
    double bandwidth = 0;  // peak bytes per second of its memory; 0: unknown
    // sm_75: some kernels have a separate version (run_for_device() in device.h).
    bool is_turing() const { return major < 8; }
    // The most shared memory of a block of which two fit on a multiprocessor (each takes a KiB more than it asks for).
    size_t shared_of_two() const {
        constexpr size_t kReserved = 1024;
        const size_t half = shared_per_multiprocessor / 2;
        return half <= kReserved ? 0 : std::min(half - kReserved, shared_per_block) & ~size_t{15};
    }
};

DeviceProperties properties(int device);

// Makes `device` the current device of this thread. Every thread that uses the device must call it.
void use_device(int device);

// Whether `device` can copy from the memory of `from` directly (PCIe peer-to-peer or NVLink). The first call for a
// pair enables it and checks it with a copy of 1 MiB: some machines announce direct copies that arrive damaged.
bool can_copy_directly(int device, int from);

// --- memory ----------------------------------------------------------------------------------------------

// Device memory, 256-byte aligned, uninitialized. data() is an address for kernels and copies, not for the host.
class DeviceMemory {
  public:
    DeviceMemory() = default;
    DeviceMemory(size_t bytes, const char *name);  // the name appears in messages
    std::byte *data() const { return static_cast<std::byte *>(bytes_.get()); }
    size_t size() const { return size_; }
    template <class T>
    T *as() const {
        return static_cast<T *>(bytes_.get());
    }

  private:
    struct Free {
        void operator()(void *p) const noexcept;
    };
    std::unique_ptr<void, Free> bytes_;
    size_t size_ = 0;
};

// Host memory from and to which the device copies asynchronously, and which kernels may read and write
// (data() is valid on both sides).
class PinnedMemory {
  public:
    PinnedMemory() = default;
    explicit PinnedMemory(size_t bytes);
    std::byte *data() const { return static_cast<std::byte *>(bytes_.get()); }
    size_t size() const { return size_; }
    template <class T>
    T *as() const {
        return static_cast<T *>(bytes_.get());
    }

  private:
    struct Free {
        void operator()(void *p) const noexcept;
    };
    std::unique_ptr<void, Free> bytes_;
    size_t size_ = 0;
};

// Tells the emulator that this part of a DeviceMemory is one object, so that it reports an access past its
// end, and whether kernels only read it: only Weights may be read by ldg*_stream and before grid_dep_wait().
// Does nothing on a device. Once memory has named regions, kernels must not touch the gaps between them.
enum class Region { Weights, Data };
void name_region(const void *begin, size_t bytes, const char *name, Region kind);

// --- streams ---------------------------------------------------------------------------------------------

// A point in a stream's work.
class Event {
  public:
    Event();
    struct Implementation;
    Implementation &get() const { return *implementation_; }
    bool done() const;  // all work before it has finished
    void wait() const;  // blocks the host; throws the errors of that work
    // The same for at most this long. Returns whether it is done.
    bool wait(std::chrono::microseconds most) const;
    static float milliseconds(const Event &from, const Event &to);  // both done

  private:
    struct Delete {
        void operator()(Implementation *p) const noexcept;
    };
    std::unique_ptr<Implementation, Delete> implementation_;
};

// Recorded work that can be replayed: all its pointers and launch shapes are fixed.
class Graph {
  public:
    Graph() = default;
    struct Implementation;
    explicit Graph(Implementation *implementation) : implementation_(implementation) {}
    explicit operator bool() const { return implementation_ != nullptr; }
    Implementation &get() const { return *implementation_; }
    int64_t kernels() const;  // the number that a replay launches

  private:
    struct Delete {
        void operator()(Implementation *p) const noexcept;
    };
    std::unique_ptr<Implementation, Delete> implementation_;
};

struct LaunchShape {
    uint32_t blocks;
    SharedBytes shared = 0;
    bool dependent = false;  // may start before the previous work ends; only if can_depend()
};

// A queue of work. Everything is asynchronous: memory passed to a stream must stay valid until an event after
// it is done, or until the stream's destructor, which waits for its work, returns. Errors of the work are
// thrown by wait() or a later call.
class Stream {
  public:
    Stream();
    void copy_to_device(void *device, const void *host, size_t bytes);  // asynchronous only if host is pinned
    void copy_to_host(void *host, const void *device, size_t bytes);    // likewise
    void copy_on_device(void *to, const void *from, size_t bytes);
    // From the memory of device `from_device` to that of the stream's device, `to_device`.
    void copy_from_device(void *to, int to_device, const void *from, int from_device, size_t bytes);
    void fill(void *device, int byte, size_t bytes);
    void record(Event &event);
    void wait_for(const Event &event);  // later work waits, the host does not
    void wait();                        // the host waits for all work

    void replay(const Graph &graph);

    void launch(const KernelHandle &kernel, const LaunchShape &shape, const void *params,
                size_t params_bytes);
    // Number of kernels launched so far, by launch() and by replay().
    int64_t launched() const;
    // The stream as libraries know it: a cudaStream_t.
    void *native() const;

    struct Implementation;
    Implementation &get() const { return *implementation_; }

  private:
    struct Delete {
        void operator()(Implementation *p) const noexcept;
    };
    std::unique_ptr<Implementation, Delete> implementation_;
};

// While it exists, the stream's work is recorded, not run. All kernels in it must be prepare()d before, and the
// thread must not allocate or free memory meanwhile. A recording without end(), e.g. after an exception, is dropped.
class Capture {
  public:
    explicit Capture(Stream &stream);
    ~Capture();
    Capture(const Capture &) = delete;
    Capture &operator=(const Capture &) = delete;
    Graph end();  // call once

  private:
    Stream *stream_;  // null: ended
};

template <class Params>
void launch(Stream &stream, const Kernel<Params> &kernel, const LaunchShape &shape,
            const std::type_identity_t<Params> &params) {
    stream.launch(kernel.handle, shape, &params, sizeof params);
}

// The error for a device whose blocks have `has` bytes of shared memory when the kernel needs `needs`.
inline BackendError too_little_shared(const KernelHandle &kernel, size_t needs, size_t has) {
    return {BackendError::Kind::NoKernel,
            "the GPU gives a kernel " + std::to_string(has >> 10) +
                " KiB of shared memory, but the model needs the kernel " + kernel.name + ", which takes " +
                std::to_string((needs + 1023) >> 10) + " KiB: use --device cpu"};
}

// Loads a kernel onto the device and allows it this much shared memory (or more, if an earlier call did).
// Must precede the first launch. All prepared kernels use the same division of L1 and shared memory: changing
// it between two launches causes a wait. Throws if the device cannot run the kernel.
void prepare(const KernelHandle &kernel, SharedBytes shared);

// Whether the kernel's loaded code contains the wait of a dependent launch (LaunchShape::dependent)
// and the device supports such launches. The device alone does not tell: it may run code that was
// compiled for less than sm_90.
bool can_depend(const KernelHandle &kernel);

// Number of blocks of the kernel that fit on one multiprocessor at a time. A persistent grid has this many
// blocks per multiprocessor.
int resident_blocks(const KernelHandle &kernel, SharedBytes shared);

}  // namespace runnel::kernels::cuda
