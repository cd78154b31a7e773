// Typed buffers of the emulated device for kernel tests.
#pragma once

#include <span>
#include <vector>

#include "kernels/cuda/runtime/runtime.h"

namespace runnel::simt {

// A copy of `host` on the device, as a named region.
template <class T>
class Buffer {
  public:
    Buffer(kernels::cuda::Stream &stream, std::span<const T> host, const char *name,
           kernels::cuda::Region kind = kernels::cuda::Region::Data)
        : stream_(stream), memory_(host.size_bytes(), name) {
        kernels::cuda::name_region(memory_.data(), memory_.size(), name, kind);
        stream.copy_to_device(memory_.data(), host.data(), host.size_bytes());
        stream.wait();
    }
    // Uninitialized.
    Buffer(kernels::cuda::Stream &stream, size_t count, const char *name)
        : stream_(stream), memory_(count * sizeof(T), name) {}

    T *data() const { return memory_.as<T>(); }
    // The device's current data; a Violation if part of it was never written.
    std::vector<T> read(size_t first, size_t count) const {
        std::vector<T> host(count);
        if (count == 0) return host;
        stream_.copy_to_host(host.data(), data() + first, count * sizeof(T));
        stream_.wait();
        return host;
    }
    std::vector<T> read() const { return read(0, memory_.size() / sizeof(T)); }

  private:
    kernels::cuda::Stream &stream_;
    kernels::cuda::DeviceMemory memory_;
};

}  // namespace runnel::simt
