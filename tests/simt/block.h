// One launch: its blocks, warps and lanes, and which accesses each of them knows of.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "kernels/cuda/runtime/runtime.h"
#include "tests/simt/fiber.h"
#include "tests/simt/memory.h"

namespace runnel::simt {

inline constexpr int kLanes = 32, kMaxWarps = 32;

using Place = std::source_location;
// Runs for a whole warp once all lanes have arrived; arguments[i] is lane i's argument.
using Collective = void (*)(void *const *arguments);

struct AsyncCopy {
    std::byte *to;
    const std::byte *from;  // null: zeros
};

// The accesses of one block's run that an observer knows to have happened: all of warp w up to clocks[w], and
// later ones of single lanes (keys warp << 25 | lane << 20 | clock).
struct Known {
    std::array<uint32_t, kMaxWarps> clocks{};
    std::vector<uint32_t> single;
    void merge(const Known &other);
};
using Knowledge = std::map<uint64_t, Known>;  // by Access::block

struct Warp;

struct Lane {
    enum class State { Ready, Arrived, Waiting, Finished };  // Waiting: for the previous launch
    explicit Lane(std::byte *stack) : fiber(stack) {}

    Fiber fiber;
    Warp *warp = nullptr;
    int index = 0;  // in the warp
    State state = State::Finished;
    Place place;
    Collective collective = nullptr;
    void *argument = nullptr;
    std::vector<AsyncCopy> open;  // since the last cp_async_commit
    std::vector<std::vector<AsyncCopy>> committed;
    int fences = 0;       // fence_gpu() calls
    bool waited = false;  // passed grid_dep_wait, directly or through a barrier
    Knowledge fenced;     // its knowledge at its last fence_gpu, which atomics pass on
    Knowledge acquired;   // received through atomics; its warp knows it after the next fence_gpu
};

struct Warp {
    int index = 0;
    std::array<Lane *, kLanes> lanes{};
    int barrier = -1, barrier_threads = 0;  // the barrier at which it waits
    Place barrier_place;
    bool finished = false;
    std::array<uint32_t, kMaxWarps> clocks{};  // its knowledge of its block's warps; [index]: its own time
    Knowledge known;                           // of other blocks
};

// A block's shared memory, with the red zone after it, and its shadow.
struct SharedPages {
    explicit SharedPages(size_t size)
        : bytes(size),
          data(size + kRedZone),
          writers(size * sizeof(uint64_t)),
          readers(size * sizeof(uint64_t)) {}
    const size_t bytes;
    Pages data, writers, readers;
};

// The arguments of a launch.
struct LaunchCall {
    kernels::cuda::KernelHandle kernel;
    kernels::cuda::LaunchShape shape;
    std::vector<std::byte> params;
};

class Launch {
  public:
    // ahead: the launch directly before it, which a dependent launch may overlap; null: none.
    explicit Launch(const LaunchCall &call, const Launch *ahead = nullptr);
    ~Launch();
    Launch(const Launch &) = delete;
    Launch &operator=(const Launch &) = delete;

    // Runs all blocks. next: a dependent launch directly after it, or null. One of its blocks runs up to its
    // grid_dep_wait() at some moment before this launch is complete. Throws Violation.
    void run(Launch *next = nullptr);
    const std::map<std::string, Traffic> &traffic() const { return traffic_; }

    // The launch whose lane is running; null outside of kernels.
    static Launch *current() { return running_ && running_->lane_ ? running_ : nullptr; }
    Lane &lane() { return *lane_; }
    Warp &warp() { return *lane_->warp; }
    int thread() const { return lane_->warp->index * kLanes + lane_->index; }
    int threads() const { return kernel_.threads; }
    int block() const { return block_; }
    int blocks() const { return static_cast<int>(shape_.blocks); }

    // The running lane meets the other lanes of its warp.
    void rendezvous(Collective collective, void *argument, const Place &place);
    void barrier(int id, int threads, const Place &place);
    void advance_clock(Warp &w) { ++w.clocks[static_cast<size_t>(w.index)]; }
    void fence();
    void wait_for_launch_ahead();
    void hand_over(const void *atomic);  // exchanges fenced knowledge with the atomic
    // Ends the launch with the message that what() returns. All its threads stay where they are and their stacks are used
    // again, so nothing on them may own memory: the message is made here, not by the caller.
    template <typename What>
    [[noreturn]] void fail(const What &what) {
        note_failure(what());
        for (;;) lane_->fiber.leave();
    }
    [[noreturn]] void fail(const char *what) {
        fail([what] { return what; });
    }

    std::byte *shared() const { return shared_->data.as<std::byte>(); }
    size_t shared_bytes() const { return shared_bytes_; }
    Shadow shared_shadow() const {
        return {shared_->writers.as<uint64_t>(), shared_->readers.as<uint64_t>()};
    }
    bool is_parameter(const void *p, size_t bytes) const;
    bool dependent() const { return shape_.dependent; }

    uint64_t first_run() const { return first_run_; }  // Access::block of this launch are >= this
    uint64_t last_run() const { return first_run_ + order_.size() - 1; }
    // Access::block of accesses that may be concurrent with the running lane's: before the wait,
    // also the previous launch's.
    uint64_t since() const { return lane_->waited ? first_run_ : ahead_; }
    uint64_t this_run() const { return this_run_; }
    uint32_t block_barriers() const { return block_barriers_; }
    // For an access by the running lane.
    Access stamp() const {
        const Warp &w = *lane_->warp;
        return {this_run_, static_cast<uint32_t>(w.index), static_cast<uint32_t>(lane_->index),
                w.clocks[static_cast<size_t>(w.index)]};
    }
    bool ordered(const Access &before) const;  // happened before the lane's current operation
    std::string describe(const Access &access) const;

  private:
    class Running;
    void run_early();
    void begin_block(size_t i);  // order_[i]
    void go_on();                // until the block is done, or waits for the previous launch
    void count_traffic();
    void run_warp(Warp &w);
    void complete_collective(Warp &w);
    void release_barriers();
    void report_deadlock();
    void note_failure(const std::string &what);
    void enter(Lane &lane);
    uint64_t random();

    static inline thread_local Launch *running_ = nullptr;  // the device's functions are plain functions

    kernels::cuda::KernelHandle kernel_;
    kernels::cuda::LaunchShape shape_;
    size_t shared_bytes_;
    std::vector<std::byte> params_;
    std::unique_ptr<SharedPages> shared_;
    std::unique_ptr<Stacks> stacks_;
    std::vector<std::unique_ptr<Lane>> lanes_;
    std::vector<Warp> warps_;
    std::map<const void *, Knowledge> atomics_;
    Lane *lane_ = nullptr;
    int block_ = 0;
    uint64_t first_run_, ahead_, this_run_ = 0, random_;
    bool early_ = false;  // the previous launch is not complete
    bool begun_ = false;  // the first block waits for it
    std::map<std::string, Traffic> traffic_;
    uint32_t block_barriers_ = 0;
    std::vector<int> order_;  // of the blocks; order_[i] ran as first_run_ + i
    std::string failure_;
    bool failed_ = false;
};

// "file.cu:12"
std::string to_string(const Place &place);

}  // namespace runnel::simt
