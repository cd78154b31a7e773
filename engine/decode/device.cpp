#include "engine/decode/device.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <vector>

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

// From the largest on, until the rest can hardly have more free: what is open has some of it taken.
int most_memory(const std::vector<kernels::DeviceInfo> &found,
                const std::function<size_t(int)> &free_memory) {
    std::vector<int> numbers(found.size());
    std::iota(numbers.begin(), numbers.end(), 0);
    const auto total = [&](int number) { return found[static_cast<size_t>(number)].memory_total; };
    std::ranges::stable_sort(numbers, std::greater(), total);
    int best = numbers.front();
    size_t most = 0;
    for (const int number : numbers) {
        if (found.size() == 1 || most >= total(number) / 10 * 9) break;
        try {
            const size_t free = free_memory(number);
            if (free > most) most = free, best = number;
        } catch (const kernels::BackendError &) {
            // Whoever is left is taken; if nobody is, loading says what is wrong.
        }
    }
    return best;
}

}  // namespace

bool is_device_name(const std::string &name) {
    return name == "auto" || name == "cpu" || name == "cuda" || number_of(name).has_value();
}

DeviceChoice choose_device(const DeviceRequest &request, const kernels::cuda::Devices &found,
                           const std::function<size_t(int)> &free_memory) {
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
    return {number ? *number : most_memory(found.found, free_memory), required, ""};
}

}  // namespace runnel::decode
