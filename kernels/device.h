// The devices that can run programs: the CPU and every GPU of this machine. A Device reports what a program
// needs and which of its steps have no kernels before it allocates anything; its Backend then runs the program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace runnel::kernels {

// Where the CPU keeps the weights that it reads. By default in the mapped file, whose pages the system may drop and read
// again.
struct WeightStorage {
    bool copied = false;  // in this process's own memory, in large pages (kernels/cpu/weight_memory.h)
    bool locked = false;  // never dropped or swapped out
    // Weights in Q1_0, Q2_0, PQ2_0 and PTQ1_0 are also in memory in an order from which passes of few tokens read them faster
    // (kernels/cpu/linear_lookup.h), where this CPU gains by it and a third of the memory that is free beside the cache is enough.
    bool rearranged = false;
};
// With more sequences at once, hardly any pass would read weights in that order.
inline constexpr int32_t kRearrangedSequences = 3;

// What a program takes of a device's memory, in bytes. Backend::load() allocates all of it, except that a GPU
// allocates block tables for sequences beyond a million cells later.
struct MemoryNeed {
    size_t weights = 0;
    size_t cache = 0;     // cache_need()
    size_t work = 0;      // activations, logits and the driver's own need
    size_t host = 0;      // host memory that a GPU reads: experts that are not resident (not part of all())
    bool mapped = false;  // weights are read from the mapped file and take no memory of their own
    size_t all() const { return weights + cache + work; }
};

// Host memory that is left free besides MemoryNeed::host, which cannot be swapped out.
inline constexpr size_t kHostReserve = size_t{256} << 20;

class Device {
  public:
    Device() = default;
    Device(const Device &) = delete;
    Device &operator=(const Device &) = delete;
    virtual ~Device() = default;

    virtual std::string name() const = 0;  // as --device spells it: "cpu", "cuda:0"
    // Does not open the device: memory_free of a GPU is 0. A GPU whose properties cannot be read has the
    // reason as its name, and no memory.
    virtual DeviceInfo info() const = 0;
    // Free bytes right now. Opens a GPU for this process (some tenths of a second, some hundred MB of its memory).
    // Throws BackendError if the GPU cannot be used: it is broken, or another process has exclusive use of it.
    virtual size_t free_memory() const = 0;

    // Throws BackendError{NoKernel} for a program with steps that the device has no kernel for.
    virtual MemoryNeed need(const Program &program, const CacheConfig &cache, int32_t max_tokens) const = 0;
    // The part of need() that grows with the cache: pages, block tables, partial results of attention,
    // states. 0 for a cache without groups and states.
    virtual size_t cache_need(const Program &program, const CacheConfig &cache, int32_t max_tokens) const = 0;
    // Bytes that gathers between devices (device_gathers.h) take besides need(), if the device has them; 0 otherwise.
    virtual size_t gather_need(const Program &, int32_t /*max_tokens*/) const { return 0; }
    // One message for each step of the program that the device cannot run; empty if it can run all.
    virtual std::vector<std::string> missing(const Program &program) const = 0;
    // Throws BackendError.
    virtual std::unique_ptr<Backend> backend() const = 0;

    // One line for the user, e.g. that the kernels must be compiled first, which takes a while.
    // Empty if there is nothing to say.
    virtual std::string note() const { return ""; }

    // Measured peak rates of a GPU; 0: not measured on this device. Both allocate memory of their own and throw
    // BackendError. Bytes per second of large copies, read plus written; operations per second of the matrix
    // units with 16-bit inputs.
    virtual double copy_bandwidth() const { return 0; }
    virtual double tensor_rate() const { return 0; }
    // Memory test: writes patterns to this many bytes, copies them and reads them back. Returns the number of
    // 8-byte words that changed. Throws BackendError.
    virtual uint64_t changed_words(size_t, uint64_t) const { return 0; }
};
using DevicePtr = std::shared_ptr<const Device>;

// Why there is no GPU. NoDriver and NoDevice are normal on machines without one; DriverTooOld and
// DriverFailed are problems of the driver.
enum class Absence { NotCompiledIn, NoDriver, DriverTooOld, DriverFailed, NoDevice };

// An unusual setting that the user should know of: "RUNNEL_CUDA_OFF", "disabled: graphs".
struct DeviceNote {
    std::string subject, text;
};

struct Devices {
    DevicePtr cpu;
    std::vector<DevicePtr> gpus;  // in the order of their numbers
    std::string gpu_kind;         // "cuda"; a GPU's name() is this, a colon and its number
    bool gpus_compiled_in = false;
    std::string why_no_gpu = {};          // set if there is no GPU: one line, "no NVIDIA driver was found"
    Absence absence = Absence::NoDevice;  // set if there is no GPU
    std::vector<DeviceNote> notes = {};   // for all GPUs
};

// Bytes of all blocks and state slots of a program's cache.
size_t block_bytes(const Program &program, const CacheConfig &cache);

// threads: of the CPU; <= 0: one per physical core. Opens no device; the first call takes some tenths of a
// second on a machine with a GPU.
Devices devices(int threads = 0);
// Its note() says, after a load, if weights could not be locked.
DevicePtr cpu_device(int threads = 0, WeightStorage weights = {});

// Whether the name is well-formed, on any machine: "cpu", or a kind of GPU, with or without a number: "cuda:1".
bool is_device_name(const std::string &name);

}  // namespace runnel::kernels
