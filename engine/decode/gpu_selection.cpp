#include "engine/decode/gpu_selection.h"

#include <algorithm>
#include <exception>
#include <map>
#include <numeric>
#include <utility>

#include "engine/decode/error.h"
#include "kernels/backend.h"

namespace runnel::decode {
namespace {

class Selector {
  public:
    Selector(const DeviceChoice &choice, kernels::DevicePtr cpu, const PlacementRequest &request,
             const PlanOn &plan)
        : choice_(choice), cpu_(std::move(cpu)), request_(request), plan_(plan) {}

    GpuSelection select(const kernels::Program &program) {
        const std::vector<kernels::DevicePtr> &gpus = choice_.gpus;
        if (choice_.fixed || gpus.size() == 1) return together(gpus);
        // GPUs with less memory than all weights need not be tried, unless the request leaves weights on the CPU.
        size_t least = 0;
        if (!request_.gpu_layers && !request_.cpu_experts && !request_.gpu_experts)
            for (const kernels::Weight &weight : program.weights) least += weight.bytes();
        for (const kernels::DevicePtr &gpu : gpus) {
            if (gpu->info().memory_total < least) continue;
            if (auto found = complete({gpu})) return *std::move(found);
        }
        std::vector<kernels::DevicePtr> first;
        for (const kernels::DevicePtr &gpu : gpus) {
            if (!open(gpu)) continue;
            first.push_back(gpu);
            if (first.size() < 2 || free_of(first) < least) continue;
            if (auto found = complete(first)) return *std::move(found);
        }
        if (first.empty()) std::rethrow_exception(problem_);
        return together(first);
    }

  private:
    // True if the GPU can be used; its free memory is then known.
    bool open(const kernels::DevicePtr &gpu) {
        if (const auto known = free_.find(gpu); known != free_.end()) return known->second.has_value();
        try {
            free_[gpu] = gpu->free_memory();
        } catch (const kernels::BackendError &) {
            if (choice_.fixed || choice_.gpus.size() == 1) throw;
            if (!problem_) problem_ = std::current_exception();
            free_[gpu] = std::nullopt;
        }
        return free_[gpu].has_value();
    }
    size_t free_of(const std::vector<kernels::DevicePtr> &gpus) const {
        return std::accumulate(gpus.begin(), gpus.end(), size_t{0},
                               [&](size_t sum, const auto &gpu) { return sum + free_.at(gpu).value(); });
    }

    // On these GPUs, with what fits.
    GpuSelection together(const std::vector<kernels::DevicePtr> &gpus) {
        GpuSelection made;
        for (const kernels::DevicePtr &gpu : gpus) {
            open(gpu);
            made.devices.push_back(gpu);
            made.free.push_back(free_.at(gpu).value());
        }
        made.devices.push_back(cpu_);
        made.free.push_back(cpu_->free_memory());
        made.plan = plan_(made.devices, made.free);
        if (made.plan) drop_unused(made);
        return made;
    }
    // The same, or nullopt if that is not all that is requested, or with less context than the model's own.
    std::optional<GpuSelection> complete(const std::vector<kernels::DevicePtr> &gpus) {
        if (!std::ranges::all_of(gpus, [this](const auto &gpu) { return open(gpu); })) return std::nullopt;
        try {
            GpuSelection made = together(gpus);
            if (made.plan && !made.plan->context.reduced && is_as_requested(made.plan->placement, request_))
                return made;
        } catch (const DecodeError &) {
            // More GPUs may hold it; if all do not, planning for all throws again.
        } catch (const kernels::BackendError &) {
        }
        return std::nullopt;
    }

    static void drop_unused(GpuSelection &made) {
        std::vector<int32_t> &each = made.plan->placement.each;
        for (size_t gpu = each.size(); gpu-- > 0;) {
            if (each[gpu] > 0) continue;
            const auto at = static_cast<std::ptrdiff_t>(gpu);
            each.erase(each.begin() + at);
            made.devices.erase(made.devices.begin() + at);
            made.free.erase(made.free.begin() + at);
        }
        if (each.size() == 1) each.clear();
    }

    const DeviceChoice &choice_;
    kernels::DevicePtr cpu_;
    const PlacementRequest &request_;
    const PlanOn &plan_;
    std::map<kernels::DevicePtr, std::optional<size_t>>
        free_;                    // of the GPUs that were opened; nullopt: failed
    std::exception_ptr problem_;  // the first GPU's that failed
};

}  // namespace

bool is_as_requested(const Placement &placement, const PlacementRequest &request) {
    if (request.gpu_layers) return true;
    return placement.gpu_layers > placement.layers && placement.embedding &&
           (placement.resident_experts == 0 || request.gpu_experts > 0) &&
           placement.cpu_experts <= request.cpu_experts.value_or(0);
}

GpuSelection select_gpus(const DeviceChoice &choice, const kernels::DevicePtr &cpu,
                         const kernels::Program &program, const PlacementRequest &request,
                         const PlanOn &plan) {
    return Selector(choice, cpu, request, plan).select(program);
}

}  // namespace runnel::decode
