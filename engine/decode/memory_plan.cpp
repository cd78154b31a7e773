#include "engine/decode/memory_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/decode/device.h"
#include "engine/decode/gpu_selection.h"
#include "engine/decode/hidden_states.h"

namespace runnel::decode {
namespace {

std::optional<GpuPlan> gpu_plan(const model::Model &model, const MemoryRequest &request) {
    const kernels::Devices found = kernels::devices();
    const DeviceChoice choice = choose_device({"auto", {}}, found);
    if (choice.gpus.empty()) return std::nullopt;
    try {
        const ContextRequest context{.own = model.hyper.context_length,
                                     .asked = request.context,
                                     .sequences = request.sequences,
                                     .batch = request.batch,
                                     .types = request.types};
        GpuSelection selected = select_gpus(
            choice, found.cpu, model.program, {}, [&](const DeviceList &devices, const FreeMemory &free) {
                return plan_placement(model.program, devices, free, {}, context);
            });
        GpuPlan made{selected.devices.front()->info(), std::move(selected.plan), ""};
        made.gpu.memory_free = std::accumulate(selected.free.begin(), selected.free.end() - 1, size_t{0});
        for (size_t gpu = 1; gpu + 1 < selected.devices.size(); ++gpu) {
            const kernels::DeviceInfo more = selected.devices[gpu]->info();
            made.gpu.name += " and " + more.name;
            made.gpu.memory_total += more.memory_total;
        }
        if (made.part) made.placement = placement_text(model.program, selected.devices, made.part->placement);
        return made;
    } catch (const kernels::BackendError &) {
        return std::nullopt;
    }
}

// Cache bytes of the layers without a window.
size_t growth(const kernels::Program &program, int64_t cells, CacheTypes types) {
    const std::vector<cache::GroupLayout> layouts = group_layouts(program, {.cells = cells});
    size_t bytes = 0;
    for (size_t group = 0; group < layouts.size(); ++group)
        if (layouts[group].reach.window == 0)
            bytes += kernels::cache_block_bytes(program, static_cast<int32_t>(group), types.k, types.v) *
                     static_cast<size_t>(layouts[group].blocks);
    return bytes;
}

}  // namespace

MemoryPlan memory_plan(const model::Model &model, const MemoryRequest &request) {
    const kernels::Program &program = model.program;
    const int64_t context = std::clamp<int64_t>(
        request.context > 0 ? request.context : model.hyper.context_length, 1, kMostContext);
    const CacheShape shape{.cells = cells_for(context, request.sequences),
                           .sequences = request.sequences,
                           .batch = request.batch,
                           .types = request.types};
    return {.context = context,
            .read_per_token = program.weight_bytes_per_token(),
            .cache_per_1k = growth(program, 1024, request.types),
            .cache_at_context = cache_bytes(program, shape),
            .draft_block = draft_block_bytes(request.draft_blocks, shape),
            .gpu = gpu_plan(model, request)};
}

}  // namespace runnel::decode
