#include "engine/decode/memory_plan.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/decode/device.h"
#include "engine/decode/hidden_states.h"

namespace runnel::decode {
namespace {

std::optional<GpuPlan> gpu_plan(const model::Model &model, const MemoryRequest &request) {
    const kernels::Devices found = kernels::devices();
    const DeviceChoice choice = choose_device({"auto", {}}, found);
    if (choice.gpus.empty()) return std::nullopt;
    try {
        const DeviceList devices = {choice.gpus.front(), found.cpu};
        GpuPlan made{devices.front()->info(), std::nullopt, ""};
        made.gpu.memory_free = devices.front()->free_memory();
        made.part =
            plan_placement(model.program, devices, {made.gpu.memory_free, found.cpu->free_memory()}, {},
                           {.own = model.hyper.context_length,
                            .asked = request.context,
                            .sequences = request.sequences,
                            .batch = request.batch,
                            .types = request.types});
        if (made.part) made.placement = placement_text(model.program, devices, made.part->placement);
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
    const CacheShape shape{.cells = std::min(context * request.sequences, kMostContext),
                           .sequences = request.sequences,
                           .batch = request.batch,
                           .types = request.types};
    return {.context = context,
            .read_per_token = program.weight_bytes_per_token(),
            .cache_per_1k = growth(program, 1024, request.types),
            .cache_at_context = cache_bytes(program, shape),
            .draft_block = request.draft_block ? draft_block_bytes(*request.draft_block, shape) : 0,
            .gpu = gpu_plan(model, request)};
}

}  // namespace runnel::decode
