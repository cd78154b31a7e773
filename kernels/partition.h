// What the backends of several devices share: split_backend.h, tensor_backend.h.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/program.h"

namespace runnel::kernels {

// Sets the size of the slots, weights, cache layers, states and ropes that no step of the partition uses to 0. The slots
// `kept` keep theirs.
void drop_unused(Program &partition, std::span<const Slot> kept = {});

// Appends the slot unless the list has it.
void insert_once(std::vector<Slot> &slots, Slot slot);

// Of the devices together: "2 x NVIDIA H100 and CPU", "cuda+cuda+cpu", and the sums of their memory.
DeviceInfo joined_info(std::span<const std::unique_ptr<Backend>> devices);

}  // namespace runnel::kernels
