// Selects, among the GPUs that a model may use, those that it runs on.
#pragma once

#include <functional>
#include <optional>

#include "engine/decode/device.h"
#include "engine/decode/placement.h"

namespace runnel::decode {

struct GpuSelection {
    DeviceList devices;                 // the GPUs with layers, and the CPU
    FreeMemory free;                    // of these
    std::optional<PlacementPlan> plan;  // nullopt: no layer fits any GPU; `devices` then has all of them
};

// plan_placement() on these devices, whose last is the CPU. May throw what that throws.
using PlanOn = std::function<std::optional<PlacementPlan>(const DeviceList &, const FreeMemory &)>;

// The first GPU of the choice that holds all that is requested, with the whole context; else the first ones that do so
// together; else all, with what fits. With DeviceChoice::fixed, all of them. GPUs are opened one by one, until
// that is known; one that cannot be opened is skipped if there is another, unless the choice is fixed.
// Throws kernels::BackendError if no GPU can be opened or none has kernels for any layer, and DecodeError{OutOfMemory} as
// plan_placement() does.
// Precondition: the choice has GPUs.
GpuSelection select_gpus(const DeviceChoice &choice, const kernels::DevicePtr &cpu,
                         const kernels::Program &program, const PlacementRequest &request,
                         const PlanOn &plan);

// True if nothing runs on the CPU except what was requested there.
bool is_as_requested(const Placement &placement, const PlacementRequest &request);

}  // namespace runnel::decode
