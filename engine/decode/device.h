// Chooses the devices that may run a model, from --device, --split, --gpu-layers and the devices of this machine.
#pragma once

#include <string>
#include <vector>

#include "engine/decode/placement.h"
#include "kernels/device.h"

namespace runnel::decode {

enum class Split {
    Layer,    // the layers may run on several GPUs
    Tensor,   // every layer runs on all GPUs, each of which has some rows of every matrix
    Columns,  // the same, but of some matrices each has some columns
    Context,  // the same, and each GPU, or process, also has some cells of every layer without a window
    None,     // one GPU
};

// Whether every device runs every layer.
constexpr bool runs_all_layers(Split split) {
    return split == Split::Tensor || split == Split::Columns || split == Split::Context;
}

// "--split tensor"
std::string option_of(Split split);

struct DeviceRequest {
    std::string device = "cpu";  // "auto", "cpu", "cuda", "cuda:N", or several: "cuda:0,cuda:2"
    PlacementRequest placement = {};
    Split split = Split::Layer;
};

struct DeviceChoice {
    std::vector<kernels::DevicePtr> gpus = {};  // in the order in which they take layers; none: the CPU
    bool required = false;                      // if they fail, report an error instead of using the CPU
    bool fixed = false;                         // use all of them, in this order; a broken one is an error
    std::string note = {};                      // what the user should know, or empty
};

// "auto" and "cuda" allow all GPUs, those with the fastest memory first, then the largest; none is opened. A list of
// names, or shares for several GPUs, fix the GPUs and their order (shares: that of their numbers). Split::None
// takes the GPU with the most free memory: GPUs are opened from the largest on, until one has 90% of the next one's
// total memory free, and one that cannot report its free memory is skipped if there is another. Split::Tensor, Columns and
// Context take all that are allowed, and fix them. No GPU: the CPU, also if no layer is to run on a GPU. Throws
// kernels::BackendError if a GPU is requested by name and does not exist, and with these three if there are fewer than two.
DeviceChoice choose_device(const DeviceRequest &request, const kernels::Devices &found);

// True for "auto", for the names in kernels/device.h, and for a list of different GPUs, as DeviceRequest::device.
bool is_device_name(const std::string &name);

}  // namespace runnel::decode
