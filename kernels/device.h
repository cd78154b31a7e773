// Where programs can run: the CPU and every GPU of this machine is a Device. What a program needs there and
// which of its steps have no kernels is known before anything is taken; a Backend then runs it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace runnel::kernels {

// What a program takes of a device's memory, in bytes: all of it in Backend::load(), none later (on a GPU but
// for the tables of sequences beyond a million cells).
struct MemoryNeed {
    size_t weights = 0;
    size_t cache = 0;     // cache_need()
    size_t work = 0;      // activations, logits, and what a driver needs
    bool mapped = false;  // the weights are read where the file is mapped: worth their memory, but not taken
    size_t all() const { return weights + cache + work; }
};

class Device {
  public:
    Device() = default;
    Device(const Device &) = delete;
    Device &operator=(const Device &) = delete;
    virtual ~Device() = default;

    virtual std::string name() const = 0;  // as --device names it: "cpu", "cuda:0"
    // Opens no device: of a GPU memory_free is 0. One that does not even tell its properties has the reason
    // for a name and no memory.
    virtual DeviceInfo info() const = 0;
    // Bytes, now. Opens a GPU for this process (some tenths of a second, some hundred MB of its memory).
    // Throws BackendError if it cannot be used: it is broken, or another process has it for itself.
    virtual size_t free_memory() const = 0;

    // Throws BackendError{NoKernel} for a program with steps that there is no kernel for.
    virtual MemoryNeed need(const Program &program, const CacheConfig &cache, int32_t max_tokens) const = 0;
    // Of that, what grows with the cache: its pages, block tables, partial results of attention. 0 for one
    // without groups.
    virtual size_t cache_need(const Program &program, const CacheConfig &cache, int32_t max_tokens) const = 0;
    // Why it cannot run a step of the program, for each, or nothing.
    virtual std::vector<std::string> missing(const Program &program) const = 0;
    // Throws BackendError.
    virtual std::unique_ptr<Backend> backend() const = 0;

    // What the user should know of it, in one line: its kernels have to be compiled first, which takes a while;
    // or empty.
    virtual std::string note() const { return ""; }

    // What a GPU does at most, measured on it, in memory of its own: bytes per second that large copies read
    // and write; operations per second of its matrix units with 16-bit inputs. 0: not measured here. Throw
    // BackendError.
    virtual double copy_bandwidth() const { return 0; }
    virtual double tensor_rate() const { return 0; }
    // Writes patterns to so much of its memory, copies them, reads them back: how many 8-byte words came back
    // changed. Throws BackendError.
    virtual uint64_t changed_words(size_t, uint64_t) const { return 0; }
};
using DevicePtr = std::shared_ptr<const Device>;

// Why there is no GPU: NoDriver and NoDevice are how machines without one look, the driver is at fault where
// it is TooOld for this program or Failed.
enum class Absence { NotCompiledIn, NoDriver, DriverTooOld, DriverFailed, NoDevice };

// Something that is not as usual: "RUNNEL_CUDA_OFF", "left out: graphs".
struct DeviceNote {
    std::string subject, text;
};

struct Devices {
    DevicePtr cpu;
    std::vector<DevicePtr> gpus;  // in the order of their numbers
    std::string gpu_kind;         // "cuda": their names are that and a number
    bool gpus_compiled_in = false;
    std::string why_no_gpu = {};          // if there is none: one line, "no NVIDIA driver was found"
    Absence absence = Absence::NoDevice;  // if there is none
    std::vector<DeviceNote> notes = {};   // of all GPUs
};

// Bytes of all blocks and state slots of a program's cache.
size_t block_bytes(const Program &program, const CacheConfig &cache);

// threads: of the CPU; <= 0: the physical cores. Opens no device; the first call costs some tenths of a second
// where there is a GPU.
Devices devices(int threads = 0);
DevicePtr cpu_device(int threads = 0);

// "cpu", or a kind of GPU that this program knows, alone or with a number: "cuda", "cuda:1". Of any machine.
bool is_device_name(const std::string &name);

}  // namespace runnel::kernels
