// The checks at every load and store of a kernel: bounds, initialization, order, PDL rules, counting.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tests/simt/block.h"

namespace runnel::simt {

enum class Load { Plain, Stream };

// The running lane is about to read or write [p, p + bytes). They return if that is allowed, else end the
// launch. Outside a kernel they do nothing.
inline void on_read(const void *p, size_t bytes, Load kind = Load::Plain);
inline void on_write(void *p, size_t bytes);
void on_atomic(void *p, size_t bytes);
inline void expect_aligned(const void *p, size_t alignment);

// cp_async16: the target is unreadable until the copy has arrived.
void on_async_start(void *shared, const void *global);  // global null: zeros
void on_async_arrival(void *shared);

// A hint: must be in bounds, and before grid_dep_wait() in weights.
void on_prefetch(const void *p, size_t bytes);

// Whether p is in the block's shared memory.
bool is_shared(const void *p);

// Accesses outside of the running lane's own stack. Most accesses are of the stack.
void check_read(Launch &launch, const void *p, size_t bytes, Load kind);
void check_write(Launch &launch, void *p, size_t bytes);
[[noreturn]] void fail_unaligned(Launch &launch, size_t alignment);

inline void on_read(const void *p, size_t bytes, Load kind) {
    Launch *launch = Launch::current();
    if (launch && !launch->lane().fiber.owns(p)) check_read(*launch, p, bytes, kind);
}

inline void on_write(void *p, size_t bytes) {
    Launch *launch = Launch::current();
    if (launch && !launch->lane().fiber.owns(p)) check_write(*launch, p, bytes);
}

inline void expect_aligned(const void *p, size_t alignment) {
    if (reinterpret_cast<uintptr_t>(p) % alignment != 0)
        if (Launch *launch = Launch::current()) fail_unaligned(*launch, alignment);
}

}  // namespace runnel::simt
