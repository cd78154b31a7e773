// A thread of execution with its own stack that is entered and left by hand.
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

    // Makes it ready to run body(argument) from the start. Whatever it was doing is forgotten.
    void start(void (*body)(void *), void *argument);
    // From outside: runs it until it leaves.
    void enter();
    // From inside: back to where enter() was called.
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
    // What AddressSanitizer wants to know of the other side's stack.
    void *fake_inside_ = nullptr, *fake_outside_ = nullptr;
    const void *outer_stack_ = nullptr;
    size_t outer_bytes_ = 0;
};

// Stacks for `count` fibers, with a page between them that must not be touched.
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
