#include "tests/simt/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace runnel::simt {

namespace {

constexpr size_t kGuard = 4096;

#if defined(__SANITIZE_ADDRESS__)
void before_switch(void **fake, const void *stack, size_t bytes) {
    __sanitizer_start_switch_fiber(fake, stack, bytes);
}
void after_switch(void *fake, const void **stack, size_t *bytes) {
    __sanitizer_finish_switch_fiber(fake, stack, bytes);
}
void forget_stack(std::byte *stack) {
    __asan_unpoison_memory_region(stack, Fiber::kStackBytes);
}
#else
void before_switch(void **, const void *, size_t) {}
void after_switch(void *, const void **, size_t *) {}
void forget_stack(std::byte *) {}
#endif

}  // namespace

// The bytes at the top of the stack that are left unused. They differ between the stacks of a warp: at equal
// offsets in their pages, the stacks would compete for the same few lines of the cache.
static size_t unused_top(const std::byte *stack) {
    return reinterpret_cast<uintptr_t>(stack) / kGuard % 8 * 512;
}

#if defined(__x86_64__)

// Saves the callee-saved registers, stores the stack pointer in *from, and continues at `to`.
extern "C" void runnel_simt_switch(void **from, void *to);
__asm__(R"(
.text
.globl runnel_simt_switch
.type runnel_simt_switch, @function
runnel_simt_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.globl runnel_simt_enter
.type runnel_simt_enter, @function
runnel_simt_enter:
    movq %r12, %rdi
    call *%r13
    ud2
)");
extern "C" void runnel_simt_enter();

void Fiber::start(void (*body)(void *), void *argument) {
    body_ = body;
    argument_ = argument;
    forget_stack(stack_);
    std::byte *end = stack_ + kStackBytes - unused_top(stack_);
    auto *top = reinterpret_cast<void **>(end) - 9;  // its end is 16-aligned in runnel_simt_enter
    top[0] = nullptr;                                // r15
    top[1] = nullptr;                                // r14
    top[2] = reinterpret_cast<void *>(&Fiber::run);  // r13
    top[3] = this;                                   // r12
    top[4] = top[5] = nullptr;                       // rbx, rbp
    top[6] = reinterpret_cast<void *>(&runnel_simt_enter);
    inside_ = top;
    fake_inside_ = nullptr;
}

void Fiber::enter() {
    before_switch(&fake_outside_, stack_, kStackBytes);
    runnel_simt_switch(&outside_, inside_);
    after_switch(fake_outside_, nullptr, nullptr);
}

void Fiber::leave() {
    before_switch(&fake_inside_, outer_stack_, outer_bytes_);
    runnel_simt_switch(&inside_, outside_);
    after_switch(fake_inside_, &outer_stack_, &outer_bytes_);
}

#else

void Fiber::trampoline(unsigned low, unsigned high) {
    run(reinterpret_cast<Fiber *>(static_cast<uintptr_t>(uint64_t{high} << 32 | low)));
}

void Fiber::start(void (*body)(void *), void *argument) {
    body_ = body;
    argument_ = argument;
    forget_stack(stack_);
    getcontext(&inside_);
    inside_.uc_stack.ss_sp = stack_;
    inside_.uc_stack.ss_size = kStackBytes - unused_top(stack_);
    inside_.uc_link = nullptr;
    const auto self = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(this));
    makecontext(&inside_, reinterpret_cast<void (*)()>(&Fiber::trampoline), 2, static_cast<unsigned>(self),
                static_cast<unsigned>(self >> 32));
    fake_inside_ = nullptr;
}

void Fiber::enter() {
    before_switch(&fake_outside_, stack_, kStackBytes);
    swapcontext(&outside_, &inside_);
    after_switch(fake_outside_, nullptr, nullptr);
}

void Fiber::leave() {
    before_switch(&fake_inside_, outer_stack_, outer_bytes_);
    swapcontext(&inside_, &outside_);
    after_switch(fake_inside_, &outer_stack_, &outer_bytes_);
}

#endif

void Fiber::run(Fiber *self) {
    after_switch(nullptr, &self->outer_stack_, &self->outer_bytes_);
    self->body_(self->argument_);
    for (;;) self->leave();  // finished; entering it again does nothing
}

Stacks::Stacks(int count) : bytes_(static_cast<size_t>(count) * (kGuard + Fiber::kStackBytes)) {
    void *memory =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<std::byte *>(memory);
    for (int i = 0; i < count; ++i) mprotect((*this)[i] - kGuard, kGuard, PROT_NONE);
}

Stacks::~Stacks() {
    munmap(memory_, bytes_);
}

std::byte *Stacks::operator[](int i) const {
    return memory_ + static_cast<size_t>(i) * (kGuard + Fiber::kStackBytes) + kGuard;
}

}  // namespace runnel::simt
