// Which layers of a model GPUs run, and which the CPU: as asked for, or as many as fit.
//
// Layers count from the end, as in llama.cpp: of a model of L layers, N = L + 1 are all and the output, which
// counts as one more; N are the output and the last N - 1 layers. Token embeddings are looked up on the CPU
// unless everything is on the GPU. Experts of the first layers can stay on the CPU while attention runs on
// the GPU. What has no kernel on the GPU stays on the CPU: a step of experts alone, of other steps their
// layer. Several GPUs take neighboring layers, as many as their free memory is of all GPUs'.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/decode/cache_plan.h"
#include "kernels/device.h"
#include "kernels/program.h"

namespace runnel::decode {

struct PlacementRequest {
    std::optional<int64_t> gpu_layers;   // none: as many as fit
    std::optional<int64_t> cpu_experts;  // of the first so many layers; none: as few as fit
};

// The devices that a model may use: GPUs, and the CPU as the last, which runs any step.
using DeviceList = std::vector<kernels::DevicePtr>;

struct Placement {
    int32_t layers = 0;              // of the model
    int32_t gpu_layers = 0;          // layers and output, from the end: at most layers + 1
    bool embedding = true;           // the table of the embeddings is on the (first) GPU
    int32_t cpu_experts = 0;         // layers whose experts are on the CPU
    std::vector<int32_t> each = {};  // of gpu_layers those of every GPU, in order; empty: there is one

    // Everything on the GPU, as far as it has kernels.
    bool whole() const { return gpu_layers > layers && embedding && cpu_experts == 0; }
};

// For every step the index of its device. `program` may be a part of the model: its first layers.
std::vector<uint8_t> assign_steps(const kernels::Program &program, const DeviceList &devices,
                                  const Placement &placement);

// Where the layers are, those that lack a kernel on the GPU included: "all layers on the GPU", "20 of 33
// layers on the GPU, the others on the CPU", "all layers on the GPU, experts of the first 3 layers on the
// CPU", "all layers on the GPU, token embeddings on the CPU".
std::string placement_text(const kernels::Program &program, const DeviceList &devices,
                           const Placement &placement);

struct PlacementPlan {
    Placement placement;
    ContextPlan context;
    kernels::MemoryNeed gpu;  // what it takes of the GPUs' memory
    bool divided = false;     // the CPU has a part in it
    std::string missing;      // why something is on the CPU that the GPU should have; or empty
};

// What is free, in bytes, by device.
using FreeMemory = std::vector<size_t>;

// Of what is asked for, the placement with the most on the GPU that fits: all; without the embeddings;
// without the experts of the first layers; without the first layers. A context that is not asked for may
// become shorter for the GPU's sake, but not below 4096 tokens (or the model's own). Throws
// DecodeError{OutOfMemory} when a number of layers is asked for that does not fit, with what would, and
// kernels::BackendError when no layer has all its kernels. nullopt when no layer fits that need not.
std::optional<PlacementPlan> plan_placement(const kernels::Program &program, const DeviceList &devices,
                                            const FreeMemory &free, const PlacementRequest &request,
                                            const ContextRequest &context);

}  // namespace runnel::decode
