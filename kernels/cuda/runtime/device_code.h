// The architectures for which this program has machine code. For others, the driver compiles the kernels'
// PTX. Builds without nvcc have neither (devices_absent.cpp).
#pragma once

#include <span>
#include <string>

namespace runnel::kernels::cuda {

// Architectures whose machine code is in the program, as 10 * major + minor, ascending: sm_90 is 90. Empty in
// the emulator and in builds without nvcc.
std::span<const int> compiled_architectures();

// Machine code runs on devices of the same major version and the same or a higher minor version.
constexpr bool has_code_for(std::span<const int> compiled, int major, int minor) {
    for (const int architecture : compiled)
        if (architecture / 10 == major && architecture % 10 <= minor) return true;
    return false;
}

// One line for the user if the first start on this device must wait for the driver's compilation; else empty.
std::string compile_note(int device);

inline std::string compile_note(std::span<const int> compiled, int major, int minor) {
    if (compiled.empty() || has_code_for(compiled, major, minor)) return "";
    const std::string own = std::to_string(major) + std::to_string(minor);
    return "this runnel has no machine code for the GPU (sm_" + own +
           "): at the first start the driver compiles it, which takes minutes, and keeps it "
           "(~/.nv/ComputeCache); a build with CUDA_ARCHS=" +
           own + " avoids this";
}

}  // namespace runnel::kernels::cuda
