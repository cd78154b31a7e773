#include "engine/measure/device_plan.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <string>

#include "engine/decode/placement.h"
#include "engine/measure/planner.h"
#include "engine/model/layers.h"
#include "kernels/device.h"
#include "kernels/divided_groups.h"
#include "kernels/split_program.h"
#include "kernels/steps.h"
#include "kernels/tensor_program.h"

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

// Bytes of the cells of one sequence that a partition's attention reads for a token. ranks: devices that divide the cells of
// layers without a window.
double cells_read(const Program &partition, int64_t filled, decode::CacheTypes types, int32_t ranks = 1) {
    double bytes = 0;
    for (const CellGroup &group : cell_groups(partition)) {
        const double cells =
            group.window > 0
                ? static_cast<double>(std::min<int64_t>(filled, int64_t{group.window} + group.sinks))
                : static_cast<double>(filled) / ranks;
        bytes += cells * static_cast<double>(group.layers) * static_cast<double>(group.bytes(types));
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

decode::ContextRequest context_request(const DevicePlanRequest &request) {
    return {.own = decode::kMostContext,
            .sequences = request.sequences,
            .batch = request.batch,
            .types = request.types};
}

// Bytes that a rank receives from the others, if all together receive `all`.
double received(double all, size_t ranks) {
    return all / static_cast<double>(ranks);
}

// Cells of a part of a sequence whose sums GPUs exchange (kernels/cuda/attention/divided_attention.h).
constexpr int64_t kPartCells = 256;

// Seconds of what the ranks exchange for a token after `filled` others.
double exchange_seconds(const kernels::TensorProgram &tensor, const Link &link, int64_t filled) {
    const size_t ranks = tensor.programs.size();
    if (ranks == 1) return 0;
    const auto others = static_cast<double>(ranks - 1);
    size_t operations = 1;  // the logits
    for (const kernels::TensorProgram::Stage &stage : tensor.stages) operations += stage.gathers.size();
    double bytes = static_cast<double>(kernels::gathered_bytes_per_token(tensor)) +
                   others *
                       static_cast<double>(tensor.vocabulary.empty() ? 0 : tensor.vocabulary.back().end) *
                       sizeof(float);
    const auto parts = static_cast<double>(filled / kPartCells + 1);
    const Program &first = tensor.programs.front();
    kernels::for_each_step<kernels::Attention>(first, [&](const kernels::Attention &a) {
        if (!a.attends() || !first.cache_layers[static_cast<size_t>(a.cache)].divided) return;
        ++operations;
        bytes += others * parts * static_cast<double>(a.heads) * (a.head_dim_v + 2) * sizeof(float);
    });
    return received(bytes, ranks) / link.bandwidth + static_cast<double>(operations) * link.latency;
}

// The program with all matrices in this format, which decides whether they can be cut by columns.
Program with_format(Program program, gguf::Type format) {
    for (kernels::Weight &w : program.weights)
        if (w.rows > 1 && w.type != gguf::Type::F32) w.type = format;
    return program;
}

}  // namespace

std::optional<SharedPlan> plan_shared(const Program &program, const DevicePlanRequest &request,
                                      decode::Split split) {
    const auto ranks = static_cast<int32_t>(request.devices.size());
    decode::ContextRequest longest = context_request(request);
    if (split == decode::Split::Context) longest.ranks = ranks;
    const std::vector<int32_t> cache_shares = kernels::divided_groups(program, longest.ranks);
    if (longest.ranks > 1 && std::ranges::count(cache_shares, ranks) == 0) return std::nullopt;
    std::vector<double> shares;
    for (const PlannedDevice &device : request.devices) shares.push_back(device.bandwidth);
    const bool predicts = std::ranges::all_of(shares, [](double share) { return share > 0; });
    if (!predicts) std::ranges::fill(shares, 1);
    const bool columns = split == decode::Split::Columns;
    const kernels::TensorProgram tensor = kernels::cut_program(
        columns && request.format ? with_format(program, *request.format) : program, shares, cache_shares,
        columns ? kernels::MatrixCut::Columns : kernels::MatrixCut::Rows);
    std::deque<AbsentDevice> devices;
    for (const PlannedDevice &device : request.devices)
        devices.emplace_back(devices.size(), static_cast<size_t>(device.memory), request.format);
    std::vector<decode::CacheBudget> budgets;
    for (size_t r = 0; r < devices.size(); ++r) {
        budgets.push_back(decode::budget_of_share(
            decode::budget_of(devices[r], tensor.programs[r], devices[r].free_memory(), longest), r));
    }
    SharedPlan made;
    if (const auto fits = decode::plan_context(program, budgets, longest))
        made.context = std::min<int64_t>(fits->context, fits->cells / request.sequences);
    if (made.context < request.context) made.context = 0;
    if (made.context == 0 || !predicts) return made;
    const int64_t filled = std::min(request.filled, made.context);
    double slowest = 0;
    for (size_t r = 0; r < devices.size(); ++r) {
        const Program &own = tensor.programs[r];
        const double bytes =
            weights_read(own, request.format) + cells_read(own, filled, request.types, longest.ranks);
        slowest = std::max(slowest, bytes / request.devices[r].bandwidth);
    }
    made.predicted = 1 / (slowest + exchange_seconds(tensor, request.link, filled));
    return made;
}

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
    const decode::ContextRequest longest = context_request(request);
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
