// What the host needs of the CUDA runtime, and no more: memory, streams, events, launches, graphs.
//
// Two implementations are linked in turn: runtime.cpp (the CUDA runtime, static) into the program, and the
// emulator of tests/simt/ into the tests, where the same kernels run on the host and every access is checked.
// Errors are BackendError with one line that names what failed; OutOfMemory when memory is short. Nothing
// here is thread-safe beyond what is said; different streams may be used by different threads.
#pragma once

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
    size_t shared_per_block = 0;  // bytes, the most a kernel may ask for
    size_t l2_bytes = 0;
    // sm_75: some kernels run in a version of their own (run_for_device() in device.h).
    bool is_turing() const { return major < 8; }
};

DeviceProperties properties(int device);

// Makes `device` the one that this thread's calls below use. Every thread that touches the device calls it.
void use_device(int device);

// --- memory ----------------------------------------------------------------------------------------------

// Device memory, 256-byte aligned, unwritten. data() is an address for kernels and copies, not for the host.
class DeviceMemory {
  public:
    DeviceMemory() = default;
    DeviceMemory(size_t bytes, const char *name);  // the name is for messages
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

// Host memory that the device can copy from and to while the host goes on, and that kernels may write to
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

// Tells the emulator what part of a DeviceMemory is one object, so that an access past its end is found, and
// whether kernels only read it: Weights alone may be read by ldg*_stream and before grid_dep_wait(). Does
// nothing on a device. Once memory has named regions, kernels may touch nothing between them.
enum class Region { Weights, Data };
void name_region(const void *begin, size_t bytes, const char *name, Region kind);

// --- streams ---------------------------------------------------------------------------------------------

// A point in a stream's work.
class Event {
  public:
    Event();
    struct Implementation;
    Implementation &get() const { return *implementation_; }
    bool done() const;  // everything before it is finished
    void wait() const;  // the host waits for it; throws what that work threw
    static float milliseconds(const Event &from, const Event &to);  // both done

  private:
    struct Delete {
        void operator()(Implementation *p) const noexcept;
    };
    std::unique_ptr<Implementation, Delete> implementation_;
};

// Work recorded once and replayed: all its pointers and launch shapes are fixed.
class Graph {
  public:
    Graph() = default;
    struct Implementation;
    explicit Graph(Implementation *implementation) : implementation_(implementation) {}
    explicit operator bool() const { return implementation_ != nullptr; }
    Implementation &get() const { return *implementation_; }
    int64_t kernels() const;  // that a replay launches

  private:
    struct Delete {
        void operator()(Implementation *p) const noexcept;
    };
    std::unique_ptr<Implementation, Delete> implementation_;
};

struct LaunchShape {
    uint32_t blocks;
    SharedBytes shared = 0;
    bool dependent = false;  // may start before the work ahead of it ends: can_depend() alone allows it
};

// Work in order. Everything is asynchronous: memory handed to a stream stays valid until an event after it is
// done, or the stream is gone: it ends when its work has. Errors of the work surface at wait() or at a later
// call.
class Stream {
  public:
    Stream();
    void copy_to_device(void *device, const void *host, size_t bytes);  // host: pinned to be asynchronous
    void copy_to_host(void *host, const void *device, size_t bytes);    // likewise
    void copy_on_device(void *to, const void *from, size_t bytes);
    void fill(void *device, int byte, size_t bytes);
    void record(Event &event);
    void wait_for(const Event &event);  // later work waits; the host does not
    void wait();                        // the host waits for all work

    void replay(const Graph &graph);

    void launch(const KernelHandle &kernel, const LaunchShape &shape, const void *params,
                size_t params_bytes);
    // Kernels that the device was given to run so far, by launch() and by replay().
    int64_t launched() const;

    struct Implementation;
    Implementation &get() const { return *implementation_; }

  private:
    struct Delete {
        void operator()(Implementation *p) const noexcept;
    };
    std::unique_ptr<Implementation, Delete> implementation_;
};

// While it lives, the stream's work is recorded, not run. The kernels in it must have been prepare()d, and
// the thread allocates and frees no memory. A recording that is not ended (something threw) is dropped.
class Capture {
  public:
    explicit Capture(Stream &stream);
    ~Capture();
    Capture(const Capture &) = delete;
    Capture &operator=(const Capture &) = delete;
    Graph end();  // once

  private:
    Stream *stream_;  // null: ended
};

template <class Params>
void launch(Stream &stream, const Kernel<Params> &kernel, const LaunchShape &shape,
            const std::type_identity_t<Params> &params) {
    stream.launch(kernel.handle, shape, &params, sizeof params);
}

// Of a device whose blocks have `has` bytes of shared memory, and not the `needs` of the kernel.
inline BackendError too_little_shared(const KernelHandle &kernel, size_t needs, size_t has) {
    return {BackendError::Kind::NoKernel,
            "the GPU gives a kernel " + std::to_string(has >> 10) +
                " KiB of shared memory, but the model needs the kernel " + kernel.name + ", which takes " +
                std::to_string((needs + 1023) >> 10) + " KiB: use --device cpu"};
}

// Loads a kernel onto the device and lets it use so much shared memory (or more, if an earlier call allowed
// that): before the first launch. All prepared kernels divide L1 and shared memory in one way: to change it
// between two launches costs a wait. Throws if the device cannot run it.
void prepare(const KernelHandle &kernel, SharedBytes shared);

// Whether the kernel, as it is loaded, has the wait of a dependent launch (LaunchShape::dependent), and the
// device such launches: not to be asked of the device alone, which may run code that was compiled for less
// than sm_90.
bool can_depend(const KernelHandle &kernel);

// How many blocks of the kernel fit on one multiprocessor at a time; with multiprocessors, the size of a
// persistent grid.
int resident_blocks(const KernelHandle &kernel, SharedBytes shared);

}  // namespace runnel::kernels::cuda
