// Launches on a device: grids of the size that pays, as dependent launches where the device has them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <type_traits>

#include "kernels/cuda/runtime/runtime.h"

namespace runnel::kernels::cuda {

// The stream outlives it.
class Launcher {
  public:
    Launcher(Stream &stream, const DeviceProperties &properties) : stream_(stream), properties_(properties) {}

    // At most as many blocks as fit on the device at a time: for kernels whose grid may be any.
    template <class Params>
    void run(const Kernel<Params> &kernel, int64_t blocks, SharedBytes shared,
             const std::type_identity_t<Params> &params) {
        const auto most = int64_t{resident(kernel.handle, shared)} * properties_.multiprocessors;
        run_exactly(kernel, std::clamp<int64_t>(blocks, 1, most), shared, params);
    }
    template <class Params>
    void run_exactly(const Kernel<Params> &kernel, int64_t blocks, SharedBytes shared,
                     const std::type_identity_t<Params> &params) {
        launch(stream_, kernel, {static_cast<uint32_t>(blocks), shared, properties_.dependent_launch()},
               params);
    }

    int multiprocessors() const { return properties_.multiprocessors; }

    // Blocks of a kernel that fit on a multiprocessor.
    int resident(const KernelHandle &kernel, SharedBytes shared) {
        const auto known = resident_.find(kernel.entry);
        if (known != resident_.end()) return known->second;
        return resident_[kernel.entry] = std::max(1, resident_blocks(kernel, shared));
    }

  private:
    Stream &stream_;
    const DeviceProperties &properties_;
    std::map<const void *, int> resident_;  // by kernel
};

}  // namespace runnel::kernels::cuda
