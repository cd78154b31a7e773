#include "engine/decode/device.h"

#include <algorithm>
#include <functional>

#include "kernels/backend.h"

namespace runnel::decode {
namespace {

// Stops at a GPU that has 90% of the next one's total memory free: opening a GPU takes some of its memory.
kernels::DevicePtr most_memory(std::vector<kernels::DevicePtr> gpus) {
    const kernels::DevicePtr first = gpus.front();
    if (gpus.size() == 1) return first;
    const auto total = [](const kernels::DevicePtr &gpu) { return gpu->info().memory_total; };
    std::ranges::stable_sort(gpus, std::greater(), total);
    kernels::DevicePtr best = gpus.front();
    size_t most = 0;
    for (const kernels::DevicePtr &gpu : gpus) {
        if (most >= total(gpu) / 10 * 9) break;
        try {
            const size_t free = gpu->free_memory();
            if (free > most) most = free, best = gpu;
        } catch (const kernels::BackendError &) {
            // Another GPU may work; if none does, loading reports the error.
        }
    }
    return best;
}

}  // namespace

bool is_device_name(const std::string &name) {
    return name == "auto" || kernels::is_device_name(name);
}

DeviceChoice choose_device(const DeviceRequest &request, const kernels::Devices &found) {
    const std::optional<int64_t> wanted = request.placement.gpu_layers;
    if (request.device == found.cpu->name() || (wanted && *wanted <= 0)) return {};
    const bool required = request.device != "auto";
    const bool any = !required || request.device == found.gpu_kind;
    std::vector<kernels::DevicePtr> fitting;
    for (const kernels::DevicePtr &gpu : found.gpus)
        if (any || gpu->name() == request.device) fitting.push_back(gpu);
    if (!fitting.empty()) return {{most_memory(std::move(fitting))}, required, ""};
    const std::string count = std::to_string(found.gpus.size());
    const std::string why = found.gpus.empty()       ? found.why_no_gpu
                            : found.gpus.size() == 1 ? "there is only one GPU"
                                                     : "there are only " + count + " GPUs";
    if (required)
        throw kernels::BackendError(
            kernels::BackendError::Kind::Failed,
            "--device " + request.device + ": " + why + " (--device cpu needs no GPU)");
    return {{}, false, wanted ? why + ": everything runs on the CPU" : ""};
}

}  // namespace runnel::decode
