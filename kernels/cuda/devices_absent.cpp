// The CUDA functions in builds without nvcc.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/runtime/devices.h"
#include "kernels/cuda/runtime/probe.h"

namespace runnel::kernels::cuda {

Devices find_devices() noexcept {
    return {false, {}, "this runnel was built without CUDA", Absence::NotCompiledIn};
}

[[noreturn]] static void refuse() {
    throw BackendError(BackendError::Kind::Failed, find_devices().why_none);
}

size_t free_memory(int) {
    refuse();
}
std::span<const int> compiled_architectures() {
    return {};
}
std::string compile_note(int) {
    return "";
}
std::unique_ptr<Backend> make_cuda_backend(int) {
    refuse();
}
std::vector<std::string> missing_kernels(const Program &) {
    refuse();
}
MemoryNeed memory_need(const Program &, const CacheConfig &, int32_t) {
    refuse();
}
size_t cache_memory(const Program &, const CacheConfig &, int32_t) {
    refuse();
}
size_t gather_memory(const Program &, int32_t) {
    refuse();
}
double copy_bandwidth(int, size_t, int) {
    refuse();
}
double tensor_rate(int, int) {
    refuse();
}
uint64_t changed_words(int, size_t, uint64_t) {
    refuse();
}

}  // namespace runnel::kernels::cuda
