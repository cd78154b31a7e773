// Records what a thread spends its time on, as spans with names and numbers (runnel run --trace).
//
//   Trace trace;                                   // spans of this thread are recorded from here on
//   {
//       TraceSpan span("tokenize");
//       span.note("tokens", count);
//   }
//   for (const Trace::Event &event : trace.events()) ...
//
// Without a Trace, a span costs one comparison. Names and keys must be string literals: they are not copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "gguf/base/timer.h"

namespace runnel::base {

class Trace {
  public:
    struct Event {
        const char *name;
        double begin, seconds;  // since the Trace was made; seconds < 0: a point in time
        std::vector<std::pair<const char *, int64_t>> notes;
    };

    enum class Detail { Passes, Steps };  // Steps: passes, and each of their steps on the CPU
    // Precondition: this thread has no other Trace.
    explicit Trace(Detail detail = Detail::Passes) : detail_(detail) { current_ = this; }
    ~Trace() { current_ = nullptr; }
    Trace(const Trace &) = delete;
    Trace &operator=(const Trace &) = delete;

    // The Trace of this thread; null if nothing is recorded.
    static Trace *current() { return current_; }

    // Ended spans and points, in the order in which they ended.
    const std::vector<Event> &events() const { return events_; }
    size_t omitted() const { return omitted_; }  // events beyond kMostEvents
    static constexpr size_t kMostEvents = 1 << 20;

    void add(Event event);
    double now() const { return at(Clock::now()); }
    double at(Clock::time_point time) const { return seconds_between(began_, time); }
    bool has_steps() const { return detail_ == Detail::Steps; }
    // Adds a point in time to the current Trace, if there is one.
    static void mark(const char *name, std::vector<std::pair<const char *, int64_t>> notes = {});

  private:
    inline static thread_local Trace *current_ = nullptr;
    Detail detail_;
    Clock::time_point began_ = Clock::now();
    std::vector<Event> events_;
    size_t omitted_ = 0;
};

class TraceSpan {
  public:
    explicit TraceSpan(const char *name) : trace_(Trace::current()) {
        if (trace_) event_ = {name, trace_->now(), 0, {}};
    }
    ~TraceSpan() { end(); }
    TraceSpan(const TraceSpan &) = delete;
    TraceSpan &operator=(const TraceSpan &) = delete;

    void note(const char *key, int64_t value) {
        if (trace_) event_.notes.emplace_back(key, value);
    }
    // Ends the span before its scope does.
    void end();

  private:
    Trace *trace_;
    Trace::Event event_ = {};
};

}  // namespace runnel::base
