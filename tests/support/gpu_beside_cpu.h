// The emulated GPU and a CPU, as one device: a step for which the GPU has no kernel runs on the CPU.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/split_backend.h"

namespace runnel::testing {

inline std::unique_ptr<kernels::Backend> make_gpu_beside_cpu() {
    std::vector<std::unique_ptr<kernels::Backend>> devices;
    devices.push_back(kernels::cuda::make_cuda_backend(0));
    devices.push_back(kernels::cpu::make_cpu_backend(1));
    const auto assign = [](const kernels::Program &program) {
        std::vector<uint8_t> device;
        for (const std::string &why : kernels::cuda::missing_kernels(program)) device.push_back(why != "");
        return device;
    };
    return kernels::make_split_backend(std::move(devices), assign, {"gpu", "cpu"});
}

}  // namespace runnel::testing
