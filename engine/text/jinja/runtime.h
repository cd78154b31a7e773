// Shared by all evaluation: the limits of a rendering, and the clock.
#pragma once

#include <cstddef>
#include <ctime>
#include <functional>
#include <limits>
#include <vector>

#include "engine/text/jinja/value.h"

namespace runnel::text::jinja {

// A template is untrusted: it must end soon and use little memory. The defaults are some hundred times the
// need of the longest conversations.
struct Limits {
    size_t steps = 10'000'000;          // expressions and statements, and one per 64 bytes processed
    size_t memory = size_t{256} << 20;  // bytes allocated in total (not at a time)
    size_t output = size_t{64} << 20;   // bytes of the result
    size_t depth = 400;                 // nested expressions, including macros and loops
};

// The wall-clock time in the user's time zone.
using Clock = std::function<std::tm()>;
std::tm local_time();

class Runtime {
  public:
    Runtime(const Limits &limits, Clock clock) : limits_(limits), clock_(std::move(clock)) {}
    ~Runtime();
    Runtime(const Runtime &) = delete;
    Runtime &operator=(const Runtime &) = delete;

    // Each throws TemplateError{Limit}.
    void step(size_t count = 1) {
        if (count > limits_.steps - steps_) fail_steps();
        steps_ += count;
    }
    // Must be called for work that grows with the length of a text.
    void work(size_t bytes) { step(bytes / 64); }
    // Must be called for allocations; before them if few bytes of a template can allocate many.
    void charge(size_t bytes) {
        if (bytes > limits_.memory - memory_) fail_memory();
        memory_ += bytes;
    }
    void charge_items(size_t count) {
        charge(count > limits_.memory / sizeof(Value) ? limits_.memory + 1 : count * sizeof(Value));
    }
    void check_output(size_t bytes) const {
        if (bytes > limits_.output) fail_output();
    }

    // Increases the depth by one while it exists.
    class Deeper {
      public:
        explicit Deeper(Runtime &runtime) : runtime_(runtime) {
            if (++runtime_.depth_ > runtime_.limits_.depth) {
                --runtime_.depth_;
                fail_depth();
            }
        }
        ~Deeper() { --runtime_.depth_; }
        Deeper(const Deeper &) = delete;
        Deeper &operator=(const Deeper &) = delete;

      private:
        Runtime &runtime_;
    };

    // Makes a string and charges its memory.
    Value string(MarkedText text, bool markup = false) {
        charge(text.size() + kStringOverhead);
        return Value::string(std::move(text), markup);
    }
    static constexpr size_t kStringOverhead = 128;

    // Namespaces can contain themselves, so all are emptied after the rendering.
    Value new_namespace(Dict attributes);

    std::tm now() const { return clock_(); }
    size_t steps() const { return steps_; }
    size_t memory() const { return memory_; }

  private:
    [[noreturn]] static void fail_steps();
    [[noreturn]] static void fail_memory();
    [[noreturn]] static void fail_output();
    [[noreturn]] static void fail_depth();

    Limits limits_;
    Clock clock_;
    size_t steps_ = 0, memory_ = 0, depth_ = 0;
    std::vector<std::shared_ptr<Namespace>> namespaces_;
};

// Calls a function, macro or recursive loop. Throws TemplateError if the value is not callable.
Value call(Runtime &runtime, const Value &callee, Arguments &arguments);

// The arguments in the order of `names`, null for those not given. Throws TemplateError (Python's TypeError)
// for too many, unknown or duplicate ones, and if one of the first `required` is missing.
std::vector<const Value *> bind(std::string_view function, const Arguments &arguments,
                                std::initializer_list<std::string_view> names, size_t required = 0);

}  // namespace runnel::text::jinja
