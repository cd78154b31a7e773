#include "engine/decode/device.h"

#include <algorithm>
#include <charconv>

#include "kernels/backend.h"

namespace runnel::decode {
namespace {

constexpr std::string_view kNumbered = "cuda:";

// The N of "cuda:N".
std::optional<int> number_of(const std::string &name) {
    if (!name.starts_with(kNumbered)) return std::nullopt;
    int number = 0;
    const char *const begin = name.data() + kNumbered.size(), *const end = name.data() + name.size();
    const auto [rest, error] = std::from_chars(begin, end, number);
    if (error != std::errc() || rest != end || number < 0) return std::nullopt;
    return number;
}

int most_memory(const kernels::cuda::Devices &found) {
    const auto less = [](const kernels::DeviceInfo &a, const kernels::DeviceInfo &b) {
        return a.memory_free < b.memory_free;
    };
    return static_cast<int>(std::max_element(found.found.begin(), found.found.end(), less) -
                            found.found.begin());
}

}  // namespace

bool is_device_name(const std::string &name) {
    return name == "auto" || name == "cpu" || name == "cuda" || number_of(name).has_value();
}

DeviceChoice choose_device(const DeviceRequest &request, const kernels::cuda::Devices &found) {
    const std::optional<int64_t> wanted = request.placement.gpu_layers;
    const bool wants_none = wanted && *wanted <= 0;
    if (request.device == "cpu" || wants_none) return {};
    const bool required = request.device != "auto";
    const std::optional<int> number = number_of(request.device);
    if (found.found.empty() || (number && *number >= static_cast<int>(found.found.size()))) {
        const std::string why =
            found.found.empty() ? found.why_none
                                : "there are only " + std::to_string(found.found.size()) + " CUDA devices";
        if (required)
            throw kernels::BackendError(
                kernels::BackendError::Kind::Failed,
                "--device " + request.device + ": " + why + " (--device cpu runs without)");
        return {{}, false, wanted ? why + ": everything runs on the CPU" : ""};
    }
    return {number.value_or(most_memory(found)), required, ""};
}

}  // namespace runnel::decode
