// The emulator of a CUDA device: runs the kernels of kernels/cuda/ on the host, checks every access, and implements
// kernels/cuda/runtime/runtime.h in the tests.
//
// Each thread of a block is a fiber with its own stack. Blocks run one after the other in a random order given by the
// seed, and so do the warps between barriers and the lanes between warp collectives. Kernel sources are compiled with
// -fsanitize=thread, whose calls (trace.cpp) report every plain load and store; the wrappers of device.h report
// theirs. These errors are found, each a Violation:
//   - accesses out of bounds of a device allocation (of a named region, once it has any), of shared memory, or of
//     memory that is not device memory; misaligned wide accesses;
//   - reads of bytes never written; in shared memory, of bytes not written by this block; of cp.async targets not
//     waited for;
//   - races: two accesses of one byte, one of them a write, by threads that no barrier, warp_sync or fence + atomic +
//     fence orders (vector clocks per warp). Another block may see a store at once or only after the kernel's end, so
//     an unordered read is wrong with either value;
//   - collectives that not all lanes reach, or at different places; barriers that some threads never reach;
//   - programmatic dependent launches that touch more than weights before grid_dep_wait(), or never call it, or whose
//     code was compiled for less than sm_90 and has no wait. A block of a dependent launch directly after another one
//     runs up to its wait at a moment before that is complete, given by the seed; reading there what the other one
//     writes is a race;
//   - ldg*_stream of memory that is not a weight, or that this launch writes before or after;
//   - shared memory of a size that is no multiple of 16;
//   - operations that a device rejects: launches of kernels with more shared memory than prepare() allowed, or into a
//     graph without prepare(); allocations and prepare() while a graph is recorded; dependent launches before sm_90.
// Not found: relaxed atomics of one thread on different addresses, which a device may reorder.
// A Violation of a kernel ends the launch; it is thrown when the host waits for the stream.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace runnel::simt {

class Violation : public std::logic_error {
    using std::logic_error::logic_error;
};

// Calls of device.h that do nothing: to test that kernels need them and that their absence is found.
struct Faults {
    int fence = 0;  // the number of the fence_gpu() in each thread of a block; 0: none
    // grid_dep_wait() and grid_dep_trigger(), although launches are dependent: code for less than sm_90.
    bool dependent_wait = false;
    bool async_wait = false;  // cp_async_wait()
};

// The properties of the emulated device, from the next launch on.
struct Settings {
    uint64_t seed = 1;        // of the random orders
    int multiprocessors = 3;  // in DeviceProperties
    int resident_blocks = 2;  // of every kernel per multiprocessor
    size_t shared_per_block = 99 << 10;
    size_t shared_per_multiprocessor = 100 << 10;
    size_t memory = size_t{1} << 30;   // bytes that can be allocated on each device
    std::vector<size_t> memory_of;     // by device, in place of `memory`; empty: all have that
    std::vector<double> bandwidth_of;  // by device: of its memory; empty: unknown
    bool peers = true;                 // devices can copy from each other
    int device_without_memory = -1;    // its allocations fail, whatever it reports as free
    int major = 9, minor = 0;          // compute capability; 7.5 changes run_for_device() and cp_async16()
    // The architecture of the kernels' code, as 10 * major + minor: 80 on a device of sm_90 is PTX compiled
    // by its driver. 0: the device's own.
    int code = 0;
    size_t memory_at(int device) const {
        return memory_of.empty() ? memory : memory_of.at(static_cast<size_t>(device));
    }
    bool is_turing() const { return major < 8; }
    bool has_wait() const { return major >= 9 && (code == 0 || code >= 90); }  // grid_dep_wait()
    bool executes_wait() const { return has_wait() && !faults.dependent_wait; }
    Faults faults;
    // The device is lost at call number fail_at of those functions of runtime.h that give it work or wait for
    // it (`calls` counts them); then every call fails, as after an Xid, until `calls` is reset. 0: never.
    int64_t fail_at = 0, calls = 0;
    // The number of devices, and why there are none.
    int devices = 1;
    size_t first_busy = 0;  // bytes of the first device that other processes hold
    std::string why_none;
    int broken_device = -1;  // cannot be opened
    std::set<int> opened;    // those that were opened
};
Settings &settings();

// Bytes that the threads of a launch requested, per region (or allocation) by name.
struct Traffic {
    uint64_t streamed = 0;  // by ldg*_stream
    uint64_t read = 0;      // by any other load, cp_async16 included
    uint64_t written = 0;
    uint64_t fetched = 0;  // by prefetch_l2()
    bool operator==(const Traffic &) const = default;
    Traffic &operator+=(const Traffic &more) {
        streamed += more.streamed, read += more.read, written += more.written, fetched += more.fetched;
        return *this;
    }
};

struct LaunchReport {
    std::string kernel;
    uint32_t blocks = 0;
    std::map<std::string, Traffic> traffic;
};

// The host's requests to the device.
struct HostTraffic {
    int64_t to_device = 0, to_host = 0;               // copies
    uint64_t bytes_to_device = 0, bytes_to_host = 0;  // of those
    int64_t waits = 0;                                // of the host, for a stream
    int64_t peer_copies = 0;                          // between devices
    uint64_t peer_bytes = 0;
};
// Since the last call.
HostTraffic take_host_traffic();

// Every launch since the last call, in the order they ran.
std::vector<LaunchReport> take_reports();

// The most bytes of device memory that were allocated at a time since the last call.
size_t take_peak_memory();

// False in build/gpu-tests, where the same test cases run on a real device (tests/gpu/device/): there,
// settings have no effect, and launches leave no reports.
bool emulated();

}  // namespace runnel::simt
