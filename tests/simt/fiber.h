// A thread of execution with its own stack, entered and left explicitly.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace runnel::simt {

class Fiber {
  public:
    static constexpr size_t kStackBytes = 128 << 10;

    explicit Fiber(std::byte *stack) : stack_(stack) {}  // [kStackBytes], outlives the fiber

    // Prepares it to run body(argument) from the start. Its previous state is discarded.
    void start(void (*body)(void *), void *argument);
    // From outside: runs the fiber until it calls leave().
    void enter();
    // From inside: returns to the caller of enter().
    void leave();
    bool owns(const void *p) const {
        const auto *at = static_cast<const std::byte *>(p);
        return at >= stack_ && at < stack_ + kStackBytes;
    }

  private:
    static void run(Fiber *self);

    std::byte *stack_;
    void (*body_)(void *) = nullptr;
    void *argument_ = nullptr;
#if defined(__x86_64__)
    void *inside_ = nullptr, *outside_ = nullptr;  // stack pointers of the halted side
#else
    ucontext_t inside_, outside_;
    static void trampoline(unsigned low, unsigned high);
#endif
    // The other side's stack, as AddressSanitizer needs it.
    void *fake_inside_ = nullptr, *fake_outside_ = nullptr;
    const void *outer_stack_ = nullptr;
    size_t outer_bytes_ = 0;
};

// Stacks for `count` fibers, separated by guard pages.
class Stacks {
  public:
    explicit Stacks(int count);
    ~Stacks();
    Stacks(const Stacks &) = delete;
    Stacks &operator=(const Stacks &) = delete;
    std::byte *operator[](int i) const;

  private:
    std::byte *memory_;
    size_t bytes_;
};

}  // namespace runnel::simt
