// Plans a model on devices that need not exist: which layers each runs (--split layer), or with which part of every layer
// (--split tensor, columns and context), which context fits, and a predicted speed.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/decode/cache_plan.h"
#include "engine/decode/device.h"
#include "gguf/block.h"
#include "kernels/program.h"

namespace runnel::measure {

struct PlannedDevice {
    int64_t memory = 0;    // bytes
    double bandwidth = 0;  // of its memory, bytes per second; 0: unknown, nothing is predicted
};

// What joins two neighbors. Assumed, not measured: a link's nominal rate in one direction, and the time from the end
// of a device's work to the start of the next one's for a copy of no bytes.
struct Link {
    std::string_view name;
    double bandwidth;  // bytes per second
    double latency;    // seconds
};
inline constexpr Link kLinks[] = {{"pcie4", 32e9, 20e-6},
                                  {"pcie5", 64e9, 20e-6},
                                  {"nvlink", 450e9, 20e-6},
                                  {"100g", 12.5e9, 50e-6},
                                  {"400g", 50e9, 50e-6}};

// Memory of each device that is left free, for the driver and for activations. An assumption.
inline constexpr int64_t kSpareMemory = int64_t{1} << 30;

struct DevicePlanRequest {
    std::vector<PlannedDevice> devices;  // in the order in which they are filled
    Link link = kLinks[0];
    std::optional<gguf::Type> format = {};  // of all matrices; none: as they are
    decode::CacheTypes types = {};
    int32_t sequences = 1, batch = 512;
    int64_t context = 0;  // cells of each sequence that have to fit; 0: as many as fit
    int64_t filled = 0;   // cells of the one sequence whose speed is predicted, as far as they fit
};

struct DevicePlan {
    std::vector<int32_t> layers;  // by device; the output counts as one
    int32_t left = 0;             // layers that fit on no device
    int64_t context = 0;          // the most cells of each sequence that fit
    // Of one sequence's decode. None: layers are left, or a bandwidth is unknown. With W the weights that are read for a
    // token, P the filled cells, kv the bytes of a cell, B the link's bandwidth and d the width of the rows:
    //   1 / (sum over devices of (W_i + P kv_i) / bandwidth_i + sum over borders of (4 d / B + latency))
    std::optional<double> predicted;  // tokens per second
};

DevicePlan plan_devices(const kernels::Program &program, const DevicePlanRequest &request);

// With every layer on all devices (kernels/tensor_program.h), rows in proportion to the bandwidths, or equal if one is unknown.
struct SharedPlan {
    int64_t context =
        0;  // the most cells of each sequence that fit; 0: the weights do not, or the context that has to
    // As DevicePlan::predicted: 1 / (the largest (W_i + P kv_i) / bandwidth_i + sum over gathers of (b / B + latency)), where
    // b are the bytes that a device receives. Divided attention (kernels/cuda/attention/divided_attention.h) is one more gather
    // per layer, with P kv in equal parts; with several devices, the logits are one, too.
    std::optional<double> predicted;
};

// split: Tensor, Columns or Context. nullopt: there are no cells to divide.
std::optional<SharedPlan> plan_shared(const kernels::Program &program, const DevicePlanRequest &request,
                                      decode::Split split);

}  // namespace runnel::measure
