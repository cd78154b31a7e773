// The checks at every load and store of a kernel: bounds, initialization, order, PDL rules, counting.
#pragma once

#include <cstddef>

namespace runnel::simt {

enum class Load { Plain, Stream };

// The running lane is about to read or write [p, p + bytes). They return if that is allowed, else end the
// launch. Outside a kernel they do nothing.
void on_read(const void *p, size_t bytes, Load kind = Load::Plain);
void on_write(void *p, size_t bytes);
void on_atomic(void *p, size_t bytes);
void expect_aligned(const void *p, size_t alignment);

// cp_async16: the target is unreadable until the copy has arrived.
void on_async_start(void *shared, const void *global);  // global null: zeros
void on_async_arrival(void *shared);

// A hint: must be in bounds, and before grid_dep_wait() in weights.
void on_prefetch(const void *p, size_t bytes);

// Whether p is in the block's shared memory.
bool is_shared(const void *p);

}  // namespace runnel::simt
