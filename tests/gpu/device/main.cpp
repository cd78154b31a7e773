// build/gpu-tests: the test cases of tests/kernels/cuda/, which `make test` runs in the emulator, on a real
// device. Exit status 77 if there is none.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

#include "kernels/cuda/runtime/devices.h"
#include "tests/simt/nccl.h"
#include "tests/simt/simt.h"

namespace runnel::simt {

// What stands in for the emulator (tests/simt/): settings change nothing, and there are no reports.
Settings &settings() {
    static Settings unused;
    return unused;
}
std::vector<LaunchReport> take_reports() {
    return {};
}
HostTraffic take_host_traffic() {
    return {};
}
size_t take_peak_memory() {
    return 0;
}
bool emulated() {
    return false;
}
Nccl &nccl() {
    static Nccl unused;
    return unused;
}

}  // namespace runnel::simt

int main(int argc, char **argv) {
    constexpr int kNoDevice = 77;
    const runnel::kernels::cuda::Devices devices = runnel::kernels::cuda::find_devices();
    if (devices.found.empty()) {
        std::fprintf(stderr, "gpu-tests: no device: %s\n", devices.why_none.c_str());
        return kNoDevice;
    }
    std::printf("on %s\n", devices.found.front().name.c_str());
    return doctest::Context(argc, argv).run();
}
