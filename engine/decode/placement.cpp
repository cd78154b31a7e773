#include "engine/decode/placement.h"

#include <algorithm>
#include <span>

#include "engine/decode/error.h"
#include "engine/model/layers.h"
#include "kernels/division.h"
#include "kernels/steps.h"

namespace runnel::decode {
namespace {

// A context shorter than that, for the sake of layers on the GPU, nobody asked for.
constexpr int64_t kComfortableContext = 4096;

std::string mebibytes(size_t bytes) {
    return std::to_string((bytes + (1u << 20) - 1) >> 20) + " MiB";
}

bool has_experts(const kernels::Program &program) {
    return std::any_of(program.steps.begin(), program.steps.end(), kernels::selects_experts);
}

// What comes into question, the most on the GPU first.
std::vector<Placement> candidates(const kernels::Program &program, const PlacementRequest &request) {
    const int32_t layers = model::layers_of(program).count, all = layers + 1;
    const bool fixed = request.gpu_layers.has_value(), experts = has_experts(program);
    const auto most = static_cast<int32_t>(std::min<int64_t>(request.gpu_layers.value_or(all), all));
    const auto least_experts =
        experts ? static_cast<int32_t>(std::min<int64_t>(request.cpu_experts.value_or(0), layers)) : 0;
    const int32_t most_experts = experts && !fixed && !request.cpu_experts ? layers : least_experts;
    std::vector<Placement> list;
    if (most == all) list.push_back({layers, all, true, least_experts});
    for (int32_t n = least_experts; n <= most_experts; ++n) list.push_back({layers, most, false, n});
    for (int32_t n = most - 1; n >= 1 && !fixed; --n) list.push_back({layers, n, false, most_experts});
    return list;
}

class Planner {
  public:
    Planner(const kernels::Program &program, const FreeMemory &free, const ContextRequest &context)
        : program_(program), free_(free), context_(context) {}

    // nullopt when it does not fit, or only with a context below `least`.
    std::optional<PlacementPlan> plan(const Placement &placement, int64_t least) const {
        const Share share = share_of(placement);
        std::vector<CacheBudget> budgets = gpu_budget(share);
        if (share.divided)
            budgets.push_back(
                {&share.division.programs[1], cache_budget(share.division.programs[1], free_.cpu, context_)});
        const auto context = plan_context(program_, budgets, context_);
        if (!context || context->context < least) return std::nullopt;
        const CacheShape shape{context->cells, context_.sequences, context_.batch, context_.slack,
                               context_.types};
        return PlacementPlan{placement, *context,
                             need_of(share.division.programs[0], shape, context->context), share.divided, ""};
    }

    // The GPU has room for its part, whatever the CPU has.
    bool gpu_holds(const Placement &placement, int64_t least) const {
        const Share share = share_of(placement);
        const auto context = plan_context(program_, gpu_budget(share), context_);
        return context && context->context >= least;
    }

    // What the GPU needs for a context of so many cells.
    kernels::cuda::MemoryNeed need(const Placement &placement, int64_t cells) const {
        const CacheShape shape{cells, context_.sequences, context_.batch, context_.slack, context_.types};
        return need_of(share_of(placement).division.programs[0], shape, cells);
    }

  private:
    struct Share {
        kernels::Division division;
        kernels::cuda::MemoryNeed need;  // without a cache
        bool divided;
    };
    Share share_of(const Placement &placement) const {
        const std::vector<uint8_t> device = assign_steps(program_, placement);
        Share share{kernels::divide(program_, device), {}, false};
        share.divided = std::find(device.begin(), device.end(), 1) != device.end();
        share.need = kernels::cuda::memory_need(share.division.programs[0], {}, context_.batch);
        return share;
    }
    // Nothing where not even its weights fit.
    std::vector<CacheBudget> gpu_budget(const Share &share) const {
        const size_t taken = share.need.weights + share.need.work;
        const size_t room = taken <= free_.gpu ? free_.gpu - taken : 0;
        const auto cost = [this](const kernels::Program &program, const kernels::CacheConfig &cache,
                                 const CacheShape &shape) {
            return kernels::cuda::cache_memory(program, cache, shape.batch) +
                   (context_.beside ? context_.beside(shape, cache.context) : 0);
        };
        return {{&share.division.programs[0], room, cost}};
    }
    kernels::cuda::MemoryNeed need_of(const kernels::Program &share, const CacheShape &shape,
                                      int64_t context) const {
        return kernels::cuda::memory_need(share, cache_config(program_, shape, context), context_.batch);
    }

    const kernels::Program &program_;
    FreeMemory free_;
    ContextRequest context_;
};

// The fullest of the list that fits. What the GPU needs grows with what is on it, and what the CPU needs
// shrinks: the list is of placements that are too much for the GPU, of those that fit, and of those that are
// too much for the CPU.
std::optional<PlacementPlan> first_fit(const Planner &planner, const std::vector<Placement> &list,
                                       int64_t least) {
    const auto found = std::partition_point(list.begin(), list.end(), [&](const Placement &placement) {
        return !planner.gpu_holds(placement, least);
    });
    return found == list.end() ? std::nullopt : planner.plan(*found, least);
}

int64_t least_context(const PlacementRequest &request, const ContextRequest &context) {
    if (request.gpu_layers || context.asked > 0) return 1;
    return std::min(context.own, kComfortableContext);
}

[[noreturn]] void does_not_fit(const kernels::Program &program, const FreeMemory &free,
                               const PlacementRequest &request, const ContextRequest &context) {
    const Placement wanted = candidates(program, request).back();
    const int64_t cells = std::min(context.asked > 0 ? context.asked : int64_t{256}, kMostContext);
    const auto need = Planner(program, free, context).need(wanted, cells);
    std::string what = "the GPU has " + mebibytes(free.gpu) + " free, but " + mebibytes(need.all()) +
                       " are needed for " + placement_text(program, wanted) + " (" + mebibytes(need.weights) +
                       " of weights, " + mebibytes(need.cache) + " of cache for a context of " +
                       std::to_string(cells) + ", " + mebibytes(need.work) + " of work memory)";
    std::vector<std::string> hints;
    PlacementRequest other = request;
    other.gpu_layers.reset();
    if (const auto plan = plan_placement(program, free, other, context)) {
        const Placement &p = plan->placement;
        if (p.gpu_layers < wanted.gpu_layers) hints.push_back("-ngl " + std::to_string(p.gpu_layers));
        if (p.cpu_experts > wanted.cpu_experts)
            hints.push_back((hints.empty() ? "" : hints.back() + " ") + "--n-cpu-moe " +
                            std::to_string(p.cpu_experts));
        if (hints.size() == 2) hints.erase(hints.begin());
    }
    if (context.asked > 0) {
        ContextRequest shorter = context;
        shorter.own = context.asked;
        shorter.asked = 0;
        if (const auto plan = first_fit(Planner(program, free, shorter), candidates(program, request), 1))
            hints.push_back("-c " + std::to_string(plan->context.context));
    }
    what += hints.empty() ? "; --device cpu runs without" : "; what fits is ";
    for (size_t i = 0; i < hints.size(); ++i) what += (i > 0 ? ", or " : "") + hints[i];
    throw DecodeError(DecodeError::Kind::OutOfMemory, what);
}

// The first reason why something that the placement wants on the GPU is not there, if there is one. Throws
// when that is everything that has a layer.
std::string expect_kernels(const kernels::Program &program, const Placement &placement) {
    const std::vector<std::string> missing = kernels::cuda::missing_kernels(program);
    const auto reason =
        std::find_if(missing.begin(), missing.end(), [](const std::string &why) { return !why.empty(); });
    if (reason == missing.end()) return "";
    const model::Layers layers = model::layers_of(program);
    const std::vector<uint8_t> device = assign_steps(program, placement);
    for (size_t i = 0; i < device.size(); ++i)
        if (device[i] == 0 && layers.of_step[i] >= 0 && layers.of_step[i] < layers.count) return *reason;
    throw kernels::BackendError(kernels::BackendError::Kind::Failed, *reason);
}

}  // namespace

std::string placement_text(const kernels::Program &program, const Placement &placement) {
    const model::Layers layers = model::layers_of(program);
    const std::vector<uint8_t> device = assign_steps(program, placement);
    // By layer, the output as the last.
    std::vector<bool> on_gpu(static_cast<size_t>(layers.count) + 1, true);
    std::vector<bool> experts_here;  // of layers on the GPU that have experts, in order: on the GPU, too
    bool embedding = true;
    for (const bool experts : {false, true})
        for (size_t i = 0; i < device.size(); ++i) {
            const int32_t layer = layers.of_step[i];
            const bool here = device[i] == 0;
            if (experts != kernels::selects_experts(program.steps[i])) continue;
            if (layer < 0)
                embedding = embedding && here;
            else if (!experts)
                on_gpu[static_cast<size_t>(layer)] = on_gpu[static_cast<size_t>(layer)] && here;
            else if (on_gpu[static_cast<size_t>(layer)])
                experts_here.push_back(here);
        }
    const auto all = static_cast<int64_t>(on_gpu.size()),
               there = std::count(on_gpu.begin(), on_gpu.end(), true);
    if (there == 0) return "all layers on the CPU";
    std::string text = there == all ? "all layers on the GPU"
                                    : std::to_string(there) + " of " + std::to_string(all) +
                                          " layers on the GPU, the others on the CPU";
    const auto count = static_cast<size_t>(std::count(experts_here.begin(), experts_here.end(), false));
    if (count > 0) {
        const bool first = there == all && std::is_sorted(experts_here.begin(), experts_here.end());
        text += ", experts of " +
                (count == experts_here.size() ? std::string("all")
                 : first                      ? "the first " + std::to_string(count)
                                              : std::to_string(count)) +
                (there == all ? " layers" : " of those") + " on the CPU";
    }
    return text + (there == all && !embedding ? ", token embeddings on the CPU" : "");
}

std::vector<uint8_t> assign_steps(const kernels::Program &program, const Placement &placement) {
    const model::Layers layers = model::layers_of(program);
    const std::vector<std::string> missing = kernels::cuda::missing_kernels(program);
    const int32_t first = placement.layers + 1 - placement.gpu_layers;
    const auto is_experts = [&](size_t i) { return kernels::selects_experts(program.steps[i]); };
    // By layer, the embedding in front of the first: not on the GPU.
    std::vector<bool> on_cpu(static_cast<size_t>(layers.count) + 2);
    for (int32_t layer = -1; layer <= layers.count; ++layer) {
        const int32_t counted = layer == layers.count ? placement.layers : layer;
        on_cpu[static_cast<size_t>(layer + 1)] = layer < 0 ? !placement.embedding : counted < first;
    }
    for (size_t i = 0; i < missing.size(); ++i)
        if (!missing[i].empty() && !is_experts(i)) on_cpu[static_cast<size_t>(layers.of_step[i] + 1)] = true;
    std::vector<uint8_t> device;
    for (size_t i = 0; i < missing.size(); ++i) {
        const int32_t layer = layers.of_step[i];
        const bool experts = is_experts(i) && (layer < placement.cpu_experts || !missing[i].empty());
        device.push_back(on_cpu[static_cast<size_t>(layer + 1)] || experts);
    }
    return device;
}

std::optional<PlacementPlan> plan_placement(const kernels::Program &program, const FreeMemory &free,
                                            const PlacementRequest &request, const ContextRequest &context) {
    const std::vector<Placement> list = candidates(program, request);
    const std::string missing = expect_kernels(program, list.front());
    auto plan = first_fit(Planner(program, free, context), list, least_context(request, context));
    if (plan) {
        plan->missing = missing;
        return plan;
    }
    if (request.gpu_layers) does_not_fit(program, free, request, context);
    return std::nullopt;
}

}  // namespace runnel::decode
