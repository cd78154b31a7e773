// Launches kernels with a suitable grid size, as dependent launches if the loaded code allows it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <type_traits>
#include <utility>

#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/runtime/switches.h"

namespace runnel::kernels::cuda {

// The stream must outlive the launcher.
class Launcher {
  public:
    Launcher(Stream &stream, const DeviceProperties &properties) : stream_(stream), properties_(properties) {}

    // Launches at most as many blocks as fit on the device at a time: for kernels that accept any grid.
    template <class Params>
    void run(const Kernel<Params> &kernel, int64_t blocks, SharedBytes shared,
             const std::type_identity_t<Params> &params) {
        const auto most = int64_t{resident(kernel.handle, shared)} * properties_.multiprocessors;
        run_exactly(kernel, std::clamp<int64_t>(blocks, 1, most), shared, params);
    }
    template <class Params>
    void run_exactly(const Kernel<Params> &kernel, int64_t blocks, SharedBytes shared,
                     const std::type_identity_t<Params> &params) {
        launch(stream_, kernel,
               {static_cast<uint32_t>(blocks), shared, limits(kernel.handle, shared).can_depend}, params);
    }

    // Never as a dependent launch: begins when all earlier launches are complete.
    template <class Params>
    void run_after_all(const Kernel<Params> &kernel, int64_t blocks, SharedBytes shared,
                       const std::type_identity_t<Params> &params) {
        launch(stream_, kernel, {static_cast<uint32_t>(blocks), shared, false}, params);
    }

    const DeviceProperties &properties() const { return properties_; }
    int multiprocessors() const { return properties_.multiprocessors; }
    const Switches &switches() const { return switches_; }

    // Number of blocks of the kernel that fit on a multiprocessor at a time.
    int resident(const KernelHandle &kernel, SharedBytes shared) { return limits(kernel, shared).resident; }

  private:
    struct Limits {
        int resident;
        bool can_depend;
    };
    const Limits &limits(const KernelHandle &kernel, SharedBytes shared) {
        const std::pair key(kernel.entry, shared.on(properties_.is_turing()));
        const auto known = limits_.find(key);
        if (known != limits_.end()) return known->second;
        return limits_[key] = {std::max(1, resident_blocks(kernel, shared)),
                               switches_.pdl && can_depend(kernel)};
    }

    Stream &stream_;
    const DeviceProperties &properties_;
    const Switches switches_ = cuda::switches();
    std::map<std::pair<const void *, size_t>, Limits> limits_;  // by kernel and shared memory
};

}  // namespace runnel::kernels::cuda
