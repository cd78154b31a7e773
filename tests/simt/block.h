// One launch: its blocks, warps and lanes, and who of them knows of whose accesses.
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
// Runs for a whole warp once all lanes have arrived; arguments[i] is what lane i handed in.
using Collective = void (*)(void *const *arguments);

struct AsyncCopy {
    std::byte *to;
    const std::byte *from;  // null: zeros
};

// The accesses that an observer knows to have happened, of one block's run: everything of warp w up to
// clocks[w], and single lanes' accesses beyond (keys warp << 25 | lane << 20 | clock).
struct Known {
    std::array<uint32_t, kMaxWarps> clocks{};
    std::vector<uint32_t> single;
    void merge(const Known &other);
};
using Knowledge = std::map<uint64_t, Known>;  // by Access::block

struct Warp;

struct Lane {
    enum class State { Ready, Arrived, Waiting, Finished };  // Waiting: for the launch ahead
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
    bool waited = false;  // grid_dep_wait, by itself or behind a barrier
    Knowledge fenced;     // what it knew at its last fence_gpu: atomics hand it on
    Knowledge acquired;   // what atomics brought: its warp knows after the next fence_gpu
};

struct Warp {
    int index = 0;
    std::array<Lane *, kLanes> lanes{};
    int barrier = -1, barrier_threads = 0;  // waiting there
    Place barrier_place;
    bool finished = false;
    std::array<uint32_t, kMaxWarps> clocks{};  // what it knows of its block's warps; [index]: its own time
    Knowledge known;                           // of other blocks
};

// What a stream was asked to launch.
struct LaunchCall {
    kernels::cuda::KernelHandle kernel;
    kernels::cuda::LaunchShape shape;
    std::vector<std::byte> params;
};

class Launch {
  public:
    // ahead: the launch right before it, which a dependent launch may overlap; null: there is none.
    explicit Launch(const LaunchCall &call, const Launch *ahead = nullptr);
    ~Launch();
    Launch(const Launch &) = delete;
    Launch &operator=(const Launch &) = delete;

    // All blocks. next: a dependent launch right behind it, or null: a block of it gets as far as its
    // grid_dep_wait() at some moment before this launch is complete. Throws Violation.
    void run(Launch *next = nullptr);
    const std::map<std::string, Traffic> &traffic() const { return traffic_; }

    // The lane that runs now, if any does, and its launch.
    static Launch *current();
    Lane &lane() { return *lane_; }
    Warp &warp() { return *lane_->warp; }
    int thread() const { return lane_->warp->index * kLanes + lane_->index; }
    int threads() const { return kernel_.threads; }
    int block() const { return block_; }
    int blocks() const { return static_cast<int>(shape_.blocks); }

    // The running lane meets the others of its warp.
    void rendezvous(Collective collective, void *argument, const Place &place);
    void barrier(int id, int threads, const Place &place);
    void advance_clock(Warp &w) { ++w.clocks[static_cast<size_t>(w.index)]; }
    void fence();
    void wait_for_launch_ahead();
    void hand_over(const void *atomic);  // fenced knowledge to the atomic's, and the other way
    // Ends the launch.
    [[noreturn]] void fail(const std::string &what);

    std::byte *shared() const { return shared_.as<std::byte>(); }
    size_t shared_bytes() const { return shared_bytes_; }
    Shadow shared_shadow() const { return {shared_writers_.as<uint64_t>(), shared_readers_.as<uint64_t>()}; }
    bool is_parameter(const void *p, size_t bytes) const;
    bool dependent() const { return shape_.dependent; }

    uint64_t first_run() const { return first_run_; }  // Access::block of this launch are >= this
    uint64_t last_run() const { return first_run_ + order_.size() - 1; }
    // Access::block of what may happen beside the running lane are >= this: the launch ahead before the wait.
    uint64_t since() const { return lane_->waited ? first_run_ : ahead_; }
    uint64_t this_run() const { return this_run_; }
    uint32_t block_barriers() const { return block_barriers_; }
    Access stamp() const;                      // of an access by the running lane
    bool ordered(const Access &before) const;  // `before` happened before what the running lane does now
    std::string describe(const Access &access) const;

  private:
    void run_early();
    void begin_block(size_t i);  // order_[i]
    void go_on();                // until the block is done, or waits for the launch ahead
    void count_traffic();
    void run_warp(Warp &w);
    void complete_collective(Warp &w);
    void release_barriers();
    void report_deadlock();
    void enter(Lane &lane);
    uint64_t random();

    kernels::cuda::KernelHandle kernel_;
    kernels::cuda::LaunchShape shape_;
    size_t shared_bytes_;
    std::vector<std::byte> params_;
    Pages shared_, shared_writers_, shared_readers_;
    std::unique_ptr<Stacks> stacks_;
    std::vector<std::unique_ptr<Lane>> lanes_;
    std::vector<Warp> warps_;
    std::map<const void *, Knowledge> atomics_;
    Lane *lane_ = nullptr;
    int block_ = 0;
    uint64_t first_run_, ahead_, this_run_ = 0, random_;
    bool early_ = false;  // the launch ahead is not complete
    bool begun_ = false;  // the first block waits for that
    std::map<std::string, Traffic> traffic_;
    uint32_t block_barriers_ = 0;
    std::vector<int> order_;  // of the blocks; order_[i] ran as first_run_ + i
    std::string failure_;
    bool failed_ = false;
};

// "file.cu:12"
std::string to_string(const Place &place);

}  // namespace runnel::simt
