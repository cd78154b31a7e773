// Times the phases of a pass on the CPU, if the calling thread has a Trace that records steps (gguf/base/trace.h):
// a span per phase, named by its kind, with its layer and the mean time that threads waited for the slowest one.
//
// Calls in a pass, whose phases are separated by barriers (pool.h):
//   begin            by the calling thread, before the pass
//   start, arrive    by every thread, before and after its share of a phase; then comes the barrier
//   finish           by every thread, after the barrier
//   report           by the calling thread, after the pass
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "gguf/base/trace.h"
#include "kernels/cpu/plan.h"

namespace runnel::kernels::cpu {

class PhaseClock {
  public:
    void begin(size_t phases, int threads);
    void start(size_t phase, int thread) noexcept {
        if (trace_ && thread == 0) times_[phase].begin = base::Clock::now();
    }
    void arrive(size_t phase, int thread) noexcept {
        if (trace_) arrived_[phase & 1][static_cast<size_t>(thread)] = base::Clock::now();
    }
    // Works on thread 0 only. It reads the arrival times before the next barrier; they are overwritten only
    // after that barrier.
    void finish(size_t phase, int thread) noexcept;
    // Adds the spans of the phases that ran to the Trace.
    void report(std::span<const Phase> phases);

  private:
    struct Times {
        base::Clock::time_point begin = {}, end = {};
        double waited = 0;  // seconds, the mean over the threads
    };
    base::Trace *trace_ = nullptr;
    size_t finished_ = 0;
    std::vector<Times> times_;
    std::array<std::vector<base::Clock::time_point>, 2> arrived_;  // by thread; of even and of odd phases
};

}  // namespace runnel::kernels::cpu
