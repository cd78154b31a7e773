#include "engine/measure/device_plan.h"

#include <algorithm>
#include <memory>
#include <string>

#include "engine/decode/placement.h"
#include "engine/measure/planner.h"
#include "engine/model/layers.h"
#include "kernels/device.h"
#include "kernels/split_program.h"

namespace runnel::measure {
namespace {

using kernels::CacheConfig, kernels::MemoryNeed, kernels::Program;

// A device with this much memory, or, as the last one, the place for what fits on no other.
class AbsentDevice final : public kernels::Device {
  public:
    AbsentDevice(size_t number, size_t memory, std::optional<gguf::Type> format)
        : number_(number), memory_(memory), format_(format) {}

    std::string name() const override { return std::to_string(number_); }
    kernels::DeviceInfo info() const override { return {name(), "planned", memory_, memory_}; }
    size_t free_memory() const override { return memory_; }
    MemoryNeed need(const Program &program, const CacheConfig &cache, int32_t max_tokens) const override {
        const double weights = format_ ? weight_bytes(program, *format_) : weight_bytes(program);
        return {.weights = static_cast<size_t>(weights),
                .cache = cache_need(program, cache, max_tokens),
                .work = static_cast<size_t>(kSpareMemory)};
    }
    size_t cache_need(const Program &program, const CacheConfig &cache, int32_t) const override {
        return kernels::block_bytes(program, cache);
    }
    std::vector<std::string> missing(const Program &program) const override {
        return std::vector<std::string>(program.steps.size());
    }
    std::unique_ptr<kernels::Backend> backend() const override {
        throw kernels::BackendError(kernels::BackendError::Kind::Failed, "a planned device runs nothing");
    }

  private:
    size_t number_, memory_;
    std::optional<gguf::Type> format_;
};

// Bytes of the cells of one sequence that a partition's attention reads for a token.
double cells_read(const Program &partition, int64_t filled, decode::CacheTypes types) {
    double bytes = 0;
    for (const CellGroup &group : cell_groups(partition)) {
        const int64_t cells =
            group.window > 0 ? std::min<int64_t>(filled, int64_t{group.window} + group.sinks) : filled;
        bytes += static_cast<double>(cells) * static_cast<double>(group.layers) *
                 static_cast<double>(group.bytes(types));
    }
    return bytes;
}

double weights_read(const Program &partition, std::optional<gguf::Type> format) {
    const auto bytes = static_cast<double>(partition.weight_bytes_per_token());
    const double own = weight_bytes(partition);
    return !format || own == 0 ? bytes : bytes * weight_bytes(partition, *format) / own;
}

std::optional<double> predict(const kernels::SplitProgram &split, const DevicePlanRequest &request,
                              int64_t filled) {
    double seconds = 0;
    for (size_t d = 0; d < request.devices.size(); ++d) {
        const Program &partition = split.programs[d];
        if (partition.steps.empty()) continue;
        if (request.devices[d].bandwidth <= 0) return std::nullopt;
        const double bytes =
            weights_read(partition, request.format) + cells_read(partition, filled, request.types);
        seconds += bytes / request.devices[d].bandwidth;
    }
    for (size_t s = 1; s < split.stages.size(); ++s) {
        const kernels::SplitProgram::Stage &stage = split.stages[s];
        const Program &partition = split.programs[stage.device];
        seconds += request.link.latency;
        for (const kernels::Slot slot : partition.parts[static_cast<size_t>(stage.part)].in)
            seconds += static_cast<double>(sizeof(float)) *
                       static_cast<double>(partition.slots[static_cast<size_t>(slot)].width) /
                       request.link.bandwidth;
    }
    return 1 / seconds;
}

}  // namespace

DevicePlan plan_devices(const Program &program, const DevicePlanRequest &request) {
    constexpr size_t kUnlimited = size_t{1} << 60;
    decode::DeviceList devices;
    decode::FreeMemory free;
    for (const PlannedDevice &device : request.devices) {
        free.push_back(static_cast<size_t>(device.memory));
        devices.push_back(std::make_shared<AbsentDevice>(devices.size(), free.back(), request.format));
    }
    free.push_back(kUnlimited);
    devices.push_back(std::make_shared<AbsentDevice>(devices.size(), kUnlimited, request.format));
    const decode::ContextRequest longest{.own = decode::kMostContext,
                                         .sequences = request.sequences,
                                         .batch = request.batch,
                                         .types = request.types};
    decode::ContextRequest wanted = longest;
    wanted.asked = request.context;
    DevicePlan made;
    made.layers.assign(request.devices.size(), 0);
    const decode::PlacementRequest how{.gpu_layers = {}, .cpu_experts = 0};
    const auto left = [](const decode::Placement &placement) {
        return placement.layers + 1 - placement.gpu_layers;
    };
    const auto most = decode::plan_placement(program, devices, free, how, longest);
    const auto placed =
        request.context > 0 ? decode::plan_placement(program, devices, free, how, wanted) : most;
    if (most && left(most->placement) == 0)
        made.context = std::min<int64_t>(most->context.context, most->context.cells / request.sequences);
    if (!placed) {
        made.left = model::layers_of(program).count + 1;
        return made;
    }
    const decode::Placement &placement = placed->placement;
    made.left = left(placement);
    made.layers = placement.each.empty() ? std::vector{placement.gpu_layers} : placement.each;
    if (made.left > 0) return made;
    const int64_t filled = std::min(request.filled, std::max(made.context, request.context));
    made.predicted = predict(
        kernels::split_program(program, decode::assign_steps(program, devices, placement), devices.size()),
        request, filled);
    return made;
}

}  // namespace runnel::measure
