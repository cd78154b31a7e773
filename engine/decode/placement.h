// Which layers of a model run on GPUs and which on the CPU: as requested, or as many on GPUs as fit.
//
// Layers count from the end, as in llama.cpp, and the output counts as a layer: N layers on the GPU are the
// output and the last N - 1 layers; for a model of L layers, N = L + 1 is everything. Token embeddings are
// looked up on the CPU unless everything is on the GPU. Experts of the first layers can stay on the CPU while
// attention runs on the GPU. Or the GPU runs all experts, but holds only some of each layer at a time
// (kernels::Program::resident_experts). A step without a kernel on the GPU runs on the CPU: a step of experts alone, any
// other step with its whole layer. Several GPUs take consecutive layers: each as many as fit, in the order of the
// list, or in proportion to requested shares.
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
    std::optional<int64_t> cpu_experts;  // first layers with experts on the CPU; none: as few as fit
    std::vector<double> shares = {};     // of the layers, by GPU; empty: each GPU is filled before the next
    // Experts of each layer that a GPU holds at a time, at least those that a token uses; 0: as many as fit, at least those of
    // kLeastTokens tokens. none: all. Not together with cpu_experts.
    std::optional<int32_t> gpu_experts = {};
    static constexpr int32_t kLeastTokens = 3;  // with less, most are fetched for every token
};

// The devices that a model may use: GPUs, and the CPU as the last, which runs any step.
using DeviceList = std::vector<kernels::DevicePtr>;

struct Placement {
    int32_t layers = 0;              // of the model
    int32_t gpu_layers = 0;          // layers and output, from the end: at most layers + 1
    bool embedding = true;           // the embedding table is on the (first) GPU
    int32_t cpu_experts = 0;         // layers whose experts are on the CPU
    std::vector<int32_t> each = {};  // gpu_layers by GPU, in order; empty: there is one GPU
    int32_t resident_experts = 0;    // of each layer, that a GPU holds at a time; 0: all

    // True if everything runs on the GPU, as far as it has kernels.
    bool whole() const {
        return gpu_layers > layers && embedding && cpu_experts == 0 && resident_experts == 0;
    }
};

// The index in `devices` for every step. `program` may be a part of the model: its first layers.
std::vector<uint8_t> assign_steps(const kernels::Program &program, const DeviceList &devices,
                                  const Placement &placement);

// Where the layers run, including those without a kernel on the GPU: "all layers on the GPU", "20 of 33
// layers on the GPU, the others on the CPU", "all layers on the GPU, experts of the first 3 layers on the
// CPU", "all layers on the GPU, token embeddings on the CPU".
std::string placement_text(const kernels::Program &program, const DeviceList &devices,
                           const Placement &placement);

// ", with 24 of a layer's 128 experts at a time", or empty if GPUs hold all.
std::string resident_text(const kernels::Program &program, const Placement &placement);

struct PlacementPlan {
    Placement placement;
    ContextPlan context;
    kernels::MemoryNeed gpu;  // on all GPUs together
    bool divided = false;     // some steps run on the CPU
    std::string missing;      // why a step meant for the GPU runs on the CPU; or empty
};

// Free bytes by device.
using FreeMemory = std::vector<size_t>;

// The first placement within the request that fits: everything on the GPU; without the embeddings; without
// experts of the first layers; without the first layers. (With gpu_experts: everything on the GPU; with fewer experts at a
// time; without the embeddings; without the first layers.) To fit more, a context that was not requested may
// become shorter, but not below 4096 tokens (or the model's own). Throws DecodeError{OutOfMemory} when a
// requested number of layers does not fit, with numbers that would, or host memory has no room for experts that a GPU does not
// hold, and kernels::BackendError when no layer
// has all its kernels. nullopt when no number of layers was requested and none fits.
std::optional<PlacementPlan> plan_placement(const kernels::Program &program, const DeviceList &devices,
                                            const FreeMemory &free, const PlacementRequest &request,
                                            const ContextRequest &context);

}  // namespace runnel::decode
