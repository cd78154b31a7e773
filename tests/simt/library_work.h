// Work that an emulated library (nccl.h) adds to the streams of runtime.h.
#pragma once

#include <functional>

namespace runnel::simt {

// The device of a stream; native: Stream::native().
int device_of_stream(void *native);

// Adds a step to a stream. In the stream's turn it runs again and again, as work of the stream's device, until it returns
// true; in between, other threads use their devices. It holds device_lock(). Throws a Violation while the stream records
// a graph.
void add_step(void *native, std::function<bool()> step);

}  // namespace runnel::simt
