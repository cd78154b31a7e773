#include "engine/decode/memory_plan.h"

#include <algorithm>
#include <utility>

#include "engine/decode/device.h"

namespace runnel::decode {
namespace {

std::optional<GpuPlan> gpu_plan(const model::Model &model, int64_t context) {
    const kernels::Devices found = kernels::devices();
    const DeviceChoice choice = choose_device({"auto", {}}, found);
    if (choice.gpus.empty()) return std::nullopt;
    try {
        const DeviceList devices = {choice.gpus.front(), found.cpu};
        GpuPlan made{devices.front()->info(), std::nullopt, ""};
        made.gpu.memory_free = devices.front()->free_memory();
        made.part = plan_placement(model.program, devices, {made.gpu.memory_free, found.cpu->free_memory()},
                                   {}, {.own = model.hyper.context_length, .asked = context});
        if (made.part) made.placement = placement_text(model.program, devices, made.part->placement);
        return made;
    } catch (const kernels::BackendError &) {
        return std::nullopt;
    }
}

}  // namespace

MemoryPlan memory_plan(const model::Model &model, int64_t context) {
    const int64_t cells = std::clamp<int64_t>(context > 0 ? context : model.hyper.context_length, 1, 1 << 30);
    const size_t states = static_cast<size_t>(state_slots(model.program, {.cells = cells})) *
                          kernels::state_bytes(model.program);
    return {.context = cells,
            .read_per_token = model.program.weight_bytes_per_token(),
            .cache_per_1k = cache_bytes(model.program, 1024),
            .cache_at_context = cache_bytes(model.program, cells) + states,
            .gpu = gpu_plan(model, context)};
}

}  // namespace runnel::decode
