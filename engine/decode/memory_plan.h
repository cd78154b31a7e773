// The memory that running a model would take, to be shown to the user; loads no weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
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
    int64_t context;             // cells of one sequence
    size_t read_per_token;       // of weights
    size_t cache_per_1k;         // per 1024 further cells of a sequence whose windows are full
    size_t cache_at_context;     // of all sequences, with the states of recurrent layers
    size_t draft_block;          // of the draft blocks' caches and the hidden states; 0 without one
    std::optional<GpuPlan> gpu;  // nullopt without a GPU that has kernels for the model
};

struct MemoryRequest {
    int64_t context = 0;  // of each sequence; 0: the model's own
    int32_t sequences = 1, batch = 512;
    CacheTypes types = {};
    std::span<const kernels::Program> draft_blocks = {};  // of the file
};

MemoryPlan memory_plan(const model::Model &model, const MemoryRequest &request);

}  // namespace runnel::decode
