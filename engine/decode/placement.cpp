#include "engine/decode/placement.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>
#include <utility>

#include "engine/decode/error.h"
#include "engine/model/layers.h"
#include "gguf/base/bytes.h"
#include "kernels/split_program.h"
#include "kernels/steps.h"

namespace runnel::decode {
namespace {

// Never shrink the context below this to fit more layers on the GPU.
constexpr int64_t kComfortableContext = 4096;
// plan_context() accepts no shorter one, unless it is requested.
constexpr int64_t kLeastCells = 256;

bool has_experts(const kernels::Program &program) {
    return std::any_of(program.steps.begin(), program.steps.end(), kernels::selects_experts);
}

// candidates() for PlacementRequest::gpu_experts.
std::vector<Placement> candidates_with_places(const kernels::Program &program,
                                              const PlacementRequest &request) {
    const int32_t layers = model::layers_of(program).count, all = layers + 1;
    const auto most = static_cast<int32_t>(std::min<int64_t>(request.gpu_layers.value_or(all), all));
    const kernels::ExpertCounts experts = kernels::expert_counts(program);
    const int32_t asked = *request.gpu_experts;
    const int32_t least = asked > 0 ? std::max(asked, experts.used)
                                    : std::min(PlacementRequest::kLeastTokens * experts.used, experts.all);
    const auto resident = [&](int32_t count) { return count < experts.all ? count : 0; };
    std::vector<Placement> list;
    for (int32_t n = asked > 0 ? least : experts.all; n >= least; --n)
        list.push_back({layers, most, most == all, 0, {}, resident(n)});
    if (most == all) list.push_back({layers, all, false, 0, {}, resident(least)});
    for (int32_t n = most - 1; n >= 1 && !request.gpu_layers; --n)
        list.push_back({layers, n, false, 0, {}, resident(least)});
    return list;
}

// All placements within the request, the one with the most on the GPU first.
std::vector<Placement> candidates(const kernels::Program &program, const PlacementRequest &request) {
    const bool fixed = request.gpu_layers.has_value(), experts = has_experts(program);
    if (request.gpu_experts && experts) return candidates_with_places(program, request);
    const int32_t layers = model::layers_of(program).count, all = layers + 1;
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

size_t sum_of_gpus(const FreeMemory &free) {
    return std::accumulate(free.begin(), free.end() - 1, size_t{0});
}

// Splits layers in proportion to the parts, rounding where each part ends.
std::vector<int32_t> split_layers(int32_t layers, std::span<const double> parts) {
    const double all = std::accumulate(parts.begin(), parts.end(), 0.0);
    std::vector<int32_t> each;
    double sum = 0;
    int32_t before = 0;
    for (const double part : parts) {
        sum += part;
        const auto end = all > 0 ? static_cast<int32_t>(std::lround(layers * (sum / all))) : layers;
        each.push_back(end - before);
        before = end;
    }
    return each;
}

// For each step, why one of the GPUs cannot run it; empty if all can.
std::vector<std::string> missing_kernels(const kernels::Program &program, const DeviceList &devices) {
    std::vector<std::string> all(program.steps.size());
    for (size_t gpu = 0; gpu + 1 < devices.size(); ++gpu) {
        std::vector<std::string> more = devices[gpu]->missing(program);
        for (size_t i = 0; i < all.size(); ++i)
            if (all[i].empty()) all[i] = std::move(more[i]);
    }
    return all;
}

// Finds the device of each step, for any placement.
class Assigner {
  public:
    Assigner(const kernels::Program &program, const DeviceList &devices)
        : program_(program),
          cpu_(static_cast<uint8_t>(devices.size() - 1)),
          layers_(model::layers_of(program)),
          missing_(missing_kernels(program, devices)) {}

    const model::Layers &layers() const { return layers_; }
    const std::vector<std::string> &missing() const { return missing_; }

    std::vector<uint8_t> assign(const Placement &placement) const {
        const int32_t first = placement.layers + 1 - placement.gpu_layers;
        // The embedding goes where the first layer is.
        const auto gpu_of = [&](int32_t layer) {
            uint8_t gpu = 0;
            int32_t end = first;
            for (; gpu + 1u < placement.each.size(); ++gpu)
                if (std::max(layer, first) < (end += placement.each[gpu])) break;
            return gpu;
        };
        const auto is_experts = [&](size_t i) { return kernels::selects_experts(program_.steps[i]); };
        // Entry 0: the embedding; then the layers; the last one: the output.
        std::vector<bool> on_cpu(static_cast<size_t>(layers_.count) + 2);
        for (int32_t layer = -1; layer <= layers_.count; ++layer) {
            const int32_t counted = layer == layers_.count ? placement.layers : layer;
            on_cpu[static_cast<size_t>(layer + 1)] = layer < 0 ? !placement.embedding : counted < first;
        }
        for (size_t i = 0; i < missing_.size(); ++i)
            if (!missing_[i].empty() && !is_experts(i))
                on_cpu[static_cast<size_t>(layers_.of_step[i] + 1)] = true;
        std::vector<uint8_t> device;
        for (size_t i = 0; i < missing_.size(); ++i) {
            const int32_t layer = layers_.of_step[i];
            const bool experts = is_experts(i) && (layer < placement.cpu_experts || !missing_[i].empty());
            const bool here = on_cpu[static_cast<size_t>(layer + 1)] || experts;
            device.push_back(here ? cpu_ : gpu_of(layer == layers_.count ? placement.layers : layer));
        }
        return device;
    }

  private:
    const kernels::Program &program_;
    uint8_t cpu_;
    model::Layers layers_;
    std::vector<std::string> missing_;
};

class Planner {
  public:
    Planner(const kernels::Program &program, const DeviceList &devices, const FreeMemory &free,
            const ContextRequest &context, std::span<const double> shares)
        : program_(program),
          devices_(devices),
          free_(free),
          context_(context),
          shares_(shares.begin(), shares.end()),
          assigner_(program, devices) {}

    // nullopt when it does not fit, or only with a context below `least`.
    std::optional<PlacementPlan> plan(const Placement &placement, int64_t least) const {
        const auto each = most_cells(placement);
        if (!each) return std::nullopt;
        const Share share = share_of(placement, *each);
        const auto context = plan_context(program_, budgets(share, devices_.size()), context_);
        if (!context || context->context < least) return std::nullopt;
        const CacheShape shape{context->cells, context_.sequences, context_.batch, context_.slack,
                               context_.types};
        return PlacementPlan{share.placement, *context, need_of(share, shape, context->context),
                             !share.split.programs.back().steps.empty(), ""};
    }

    // True if the GPUs have room for their parts; the CPU's memory is not checked.
    bool gpus_hold(const Placement &placement, int64_t least) const {
        const int64_t cells = std::max(least, context_.asked > 0 ? context_.asked : kLeastCells);
        const auto each = split(placement, std::min(cells, kMostContext));
        if (!each) return false;
        const Share share = share_of(placement, *each);
        const auto context = plan_context(program_, budgets(share, gpus()), context_);
        return context && context->context >= least;
    }

    // What the GPUs need for a context of `cells` cells.
    kernels::MemoryNeed need(const Placement &placement, int64_t cells) const {
        const std::vector<double> by_memory(free_.begin(), free_.end() - 1);
        const auto each = split(placement, cells);
        const Share share = share_of(placement, each ? *each : split_layers(placement.gpu_layers, by_memory));
        return need_of(share, shape_of(cells), cells);
    }

  private:
    struct Share {
        Placement placement;
        kernels::SplitProgram split;
    };
    size_t gpus() const { return devices_.size() - 1; }
    CacheShape shape_of(int64_t cells) const {
        return {cells, context_.sequences, context_.batch, context_.slack, context_.types};
    }
    Share share_of(Placement placement, std::vector<int32_t> each) const {
        if (gpus() > 1) placement.each = std::move(each);
        kernels::SplitProgram split =
            kernels::split_program(program_, assigner_.assign(placement), devices_.size());
        for (kernels::Program &own : split.programs) own.resident_experts = placement.resident_experts;
        return {std::move(placement), std::move(split)};
    }

    // --- layers by GPU

    // By the requested shares; otherwise each GPU gets as many layers as fit with a cache of `cells` cells. nullopt if
    // layers are left. With one GPU, it gets all, whether they fit or not.
    std::optional<std::vector<int32_t>> split(const Placement &placement, int64_t cells) const {
        if (gpus() == 1) return std::vector<int32_t>{placement.gpu_layers};
        if (!shares_.empty()) return split_layers(placement.gpu_layers, shares_);
        const CacheShape shape = shape_of(cells);
        const int64_t longest = std::min(cells, context_.asked > 0 ? context_.asked : context_.own);
        const kernels::CacheConfig cache = cache_config(program_, shape, longest);
        Placement trial = placement;
        trial.each.assign(gpus(), 0);
        int32_t left = placement.gpu_layers;
        for (size_t gpu = 0; gpu < gpus() && left > 0; ++gpu) {
            const auto fits = [&](int32_t layers) {
                trial.each[gpu] = layers;
                return layers == 0 || need_on(gpu, trial, cache, shape) <= free_[gpu];
            };
            int32_t low = fits(left) ? left : 0, high = low > 0 ? low : left - 1;
            while (low < high) {
                const int32_t middle = low + (high - low + 1) / 2;
                if (fits(middle))
                    low = middle;
                else
                    high = middle - 1;
            }
            trial.each[gpu] = low;
            left -= low;
        }
        if (left > 0) return std::nullopt;
        return trial.each;
    }
    // split() for the most cells with which no layers are left, to within 2%. nullopt if there is no such number.
    std::optional<std::vector<int32_t>> most_cells(const Placement &placement) const {
        const auto unlimited = plan_context(program_, {}, context_);
        if (!unlimited) return std::nullopt;
        auto best = split(placement, unlimited->cells);
        if (best) return best;
        for (int64_t low = 0, high = unlimited->cells; high - low > std::max<int64_t>(1, low / 64);) {
            const int64_t middle = low + (high - low) / 2;
            auto each = split(placement, std::max<int64_t>(middle, 1));
            if (each)
                best = std::move(each), low = middle;
            else
                high = middle;
        }
        return best;
    }
    // Bytes on a GPU, which runs its layers of the placement.
    size_t need_on(size_t gpu, const Placement &placement, const kernels::CacheConfig &cache,
                   const CacheShape &shape) const {
        std::vector<uint8_t> elsewhere = assigner_.assign(placement);
        for (uint8_t &device : elsewhere) device = device != gpu;
        kernels::SplitProgram split = kernels::split_program(program_, elsewhere, 2);
        kernels::Program &own = split.programs.front();
        own.resident_experts = placement.resident_experts;
        if (own.steps.empty()) return 0;
        const size_t beside = context_.beside ? context_.beside(shape, cache.context) : 0;
        return devices_[gpu]->need(own, cache, context_.batch).all() + beside;
    }

    // --- memory

    // Budgets of the first `count` devices; 0 bytes for a device that the weights alone fill.
    std::vector<CacheBudget> budgets(const Share &share, size_t count) const {
        std::vector<CacheBudget> all;
        for (size_t d = 0; d < count; ++d) {
            const kernels::Program &program = share.split.programs[d];
            if (program.steps.empty()) continue;
            CacheBudget &budget = all.emplace_back(budget_of(*devices_[d], program, free_[d], context_));
            // Weights that fill the device do not fit, even if its layers have no cache.
            if (budget.bytes == 0)
                budget.cost = [](const kernels::CacheConfig &, const CacheShape &) { return size_t{1}; };
            if (d < gpus()) budget = budget_beside(std::move(budget), context_);
        }
        return all;
    }
    kernels::MemoryNeed need_of(const Share &share, const CacheShape &shape, int64_t context) const {
        kernels::MemoryNeed sum;
        for (size_t d = 0; d < gpus(); ++d) {
            const kernels::Program &program = share.split.programs[d];
            if (program.steps.empty()) continue;
            const kernels::MemoryNeed need =
                devices_[d]->need(program, cache_config(program_, shape, context), context_.batch);
            sum.weights += need.weights;
            sum.cache += need.cache;
            sum.work += need.work;
            sum.host += need.host;
        }
        return sum;
    }

    const kernels::Program &program_;
    const DeviceList &devices_;
    FreeMemory free_;
    ContextRequest context_;
    std::vector<double> shares_;  // by GPU, or empty
    Assigner assigner_;
};

// The first placement of the list that fits. Along the list, the GPU needs less and less memory and the CPU
// more and more: first come placements too large for the GPU, then those that fit, then those too large for
// the CPU.
std::optional<PlacementPlan> first_fit(const Planner &planner, const std::vector<Placement> &list,
                                       int64_t least) {
    const auto found = std::partition_point(list.begin(), list.end(), [&](const Placement &placement) {
        return !planner.gpus_hold(placement, least);
    });
    return found == list.end() ? std::nullopt : planner.plan(*found, least);
}

int64_t least_context(const PlacementRequest &request, const ContextRequest &context) {
    if (request.gpu_layers || context.asked > 0) return 1;
    return std::min(context.own, kComfortableContext);
}

[[noreturn]] void does_not_fit(const kernels::Program &program, const DeviceList &devices,
                               const FreeMemory &free, const PlacementRequest &request,
                               const ContextRequest &context) {
    const Placement wanted = candidates(program, request).back();
    const int64_t cells = std::min(context.asked > 0 ? context.asked : int64_t{256}, kMostContext);
    const auto need = Planner(program, devices, free, context, request.shares).need(wanted, cells);
    std::string what = (devices.size() > 2 ? "the GPUs have " : "the GPU has ") +
                       base::mebibytes(sum_of_gpus(free)) + " free, but " + base::mebibytes(need.all()) +
                       " are needed for " + placement_text(program, devices, wanted) +
                       resident_text(program, wanted) + " (" + base::mebibytes(need.weights) +
                       " of weights, " + base::mebibytes(need.cache) + " of cache for a context of " +
                       std::to_string(cells) + ", " + base::mebibytes(need.work) + " of work memory)";
    std::vector<std::string> hints;
    PlacementRequest other = request;
    other.gpu_layers.reset();
    const auto fitting = [&](const PlacementRequest &one) {
        return first_fit(Planner(program, devices, free, context, one.shares), candidates(program, one),
                         least_context(one, context));
    };
    if (const auto plan = fitting(other)) {
        const Placement &p = plan->placement;
        if (p.gpu_layers < wanted.gpu_layers) hints.push_back("-ngl " + std::to_string(p.gpu_layers));
        if (p.cpu_experts > wanted.cpu_experts)
            hints.push_back((hints.empty() ? "" : hints.back() + " ") + "--n-cpu-moe " +
                            std::to_string(p.cpu_experts));
        if (hints.size() == 2) hints.erase(hints.begin());
    }
    if (request.gpu_experts > 0) {
        other = request;
        other.gpu_experts = 0;
        if (const auto plan = fitting(other); plan && plan->placement.resident_experts > 0)
            hints.push_back("--gpu-experts " + std::to_string(plan->placement.resident_experts));
    }
    if (context.asked > 0) {
        ContextRequest shorter = context;
        shorter.own = context.asked;
        shorter.asked = 0;
        if (const auto plan = first_fit(Planner(program, devices, free, shorter, request.shares),
                                        candidates(program, request), 1))
            hints.push_back("-c " + std::to_string(plan->context.context));
    }
    what += hints.empty() ? "; --device cpu needs no GPU" : "; this fits: ";
    for (size_t i = 0; i < hints.size(); ++i) what += (i > 0 ? ", or " : "") + hints[i];
    throw DecodeError(DecodeError::Kind::OutOfMemory, what);
}

void expect_host_memory(const PlacementPlan &plan, size_t free) {
    if (plan.gpu.host == 0 || plan.gpu.host + kernels::kHostReserve <= free) return;
    throw DecodeError(DecodeError::Kind::OutOfMemory,
                      "--gpu-experts keeps a copy of all experts in host memory, of " +
                          base::mebibytes(plan.gpu.host) + ", but " + base::mebibytes(free) +
                          " are free: choose --cpu-moe, which reads them from the file");
}

// The first reason why a GPU cannot run a step; empty if all GPUs can run all steps. Throws the reason when
// no step of any layer can run on a GPU.
std::string expect_kernels(const kernels::Program &program, const DeviceList &devices,
                           const Placement &placement) {
    const Assigner assigner(program, devices);
    const std::vector<std::string> &missing = assigner.missing();
    const auto reason =
        std::find_if(missing.begin(), missing.end(), [](const std::string &why) { return !why.empty(); });
    if (reason == missing.end()) return "";
    const model::Layers &layers = assigner.layers();
    const std::vector<uint8_t> device = assigner.assign(placement);
    for (size_t i = 0; i < device.size(); ++i)
        if (device[i] + 1u < devices.size() && layers.of_step[i] >= 0 && layers.of_step[i] < layers.count)
            return *reason;
    throw kernels::BackendError(kernels::BackendError::Kind::Failed, *reason);
}

// "2 GPUs (20 on cuda:0, 13 on cuda:1)". Per layer: whether it is on a GPU, and on which.
std::string gpus_text(const DeviceList &devices, const std::vector<bool> &on_gpu,
                      const std::vector<size_t> &gpu_of) {
    std::vector<size_t> layers(devices.size() - 1);
    for (size_t i = 0; i < on_gpu.size(); ++i)
        if (on_gpu[i]) ++layers[gpu_of[i]];
    std::string text;
    size_t used = 0;
    for (size_t gpu = 0; gpu < layers.size(); ++gpu) {
        if (layers[gpu] == 0) continue;
        ++used;
        text += (text.empty() ? "" : ", ") + std::to_string(layers[gpu]) + " on " + devices[gpu]->name();
    }
    return (used == 1 ? "one GPU (" : std::to_string(used) + " GPUs (") + text + ")";
}

}  // namespace

std::string placement_text(const kernels::Program &program, const DeviceList &devices,
                           const Placement &placement) {
    const model::Layers layers = model::layers_of(program);
    const std::vector<uint8_t> device = assign_steps(program, devices, placement);
    // One entry per layer; the last one is the output.
    std::vector<bool> on_gpu(static_cast<size_t>(layers.count) + 1, true);
    std::vector<bool> experts_here;  // per layer on the GPU with experts: these are on the GPU, too
    std::vector<size_t> gpu_of(on_gpu.size());
    bool embedding = true;
    for (const bool experts : {false, true})
        for (size_t i = 0; i < device.size(); ++i) {
            const int32_t layer = layers.of_step[i];
            const bool here = device[i] + 1u < devices.size();
            if (experts != kernels::selects_experts(program.steps[i])) continue;
            if (layer < 0)
                embedding = embedding && here;
            else if (!experts)
                on_gpu[static_cast<size_t>(layer)] = on_gpu[static_cast<size_t>(layer)] && here,
                gpu_of[static_cast<size_t>(layer)] = device[i];
            else if (on_gpu[static_cast<size_t>(layer)])
                experts_here.push_back(here);
        }
    const auto all = static_cast<int64_t>(on_gpu.size()),
               there = std::count(on_gpu.begin(), on_gpu.end(), true);
    if (there == 0) return "all layers on the CPU";
    const std::string gpus = devices.size() > 2 ? gpus_text(devices, on_gpu, gpu_of) : "the GPU";
    std::string text = there == all ? "all layers on " + gpus
                                    : std::to_string(there) + " of " + std::to_string(all) + " layers on " +
                                          gpus + ", the others on the CPU";
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

std::string resident_text(const kernels::Program &program, const Placement &placement) {
    if (placement.resident_experts == 0) return "";
    return ", with " + std::to_string(placement.resident_experts) + " of a layer's " +
           std::to_string(kernels::expert_counts(program).all) + " experts at a time";
}

std::vector<uint8_t> assign_steps(const kernels::Program &program, const DeviceList &devices,
                                  const Placement &placement) {
    return Assigner(program, devices).assign(placement);
}

std::optional<PlacementPlan> plan_placement(const kernels::Program &program, const DeviceList &devices,
                                            const FreeMemory &free, const PlacementRequest &request,
                                            const ContextRequest &context) {
    assert(devices.size() > 1 && free.size() == devices.size());
    const std::vector<Placement> list = candidates(program, request);
    const std::string missing = expect_kernels(program, devices, list.front());
    const Planner planner(program, devices, free, context, request.shares);
    // Layers that were asked for may have any context, but fewer experts at a time come before a short one.
    const bool shares_memory = request.gpu_experts == 0 && context.asked == 0;
    auto plan =
        shares_memory ? first_fit(planner, list, std::min(context.own, kComfortableContext)) : std::nullopt;
    if (!plan) plan = first_fit(planner, list, least_context(request, context));
    if (plan) {
        expect_host_memory(*plan, free.back());
        plan->missing = missing;
        return plan;
    }
    if (request.gpu_layers) does_not_fit(program, devices, free, request, context);
    return std::nullopt;
}

}  // namespace runnel::decode
