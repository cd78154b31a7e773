// The memory that running a model would take, to be shown to the user; loads no weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "engine/decode/cache_plan.h"
#include "engine/decode/placement.h"
#include "engine/model/model.h"
#include "kernels/device.h"

namespace runnel::decode {

// The part of a model that fits on a GPU now.
struct GpuPlan {
    kernels::DeviceInfo gpu;            // with its free memory
    std::optional<PlacementPlan> part;  // nullopt: no layer fits
    std::string placement;              // the same in words
};

// All sizes in bytes.
struct MemoryPlan {
    int64_t context;             // cells
    size_t read_per_token;       // of weights
    size_t cache_per_1k;         // per 1024 cells
    size_t cache_at_context;     // of `context` cells, and the states of recurrent layers
    std::optional<GpuPlan> gpu;  // nullopt without a GPU that has kernels for the model
};

// `context`: 0 for the model's own.
MemoryPlan memory_plan(const model::Model &model, int64_t context);

}  // namespace runnel::decode
