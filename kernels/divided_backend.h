// Several devices as one: each runs its share of the program (division.h) and keeps K and V of its own layers,
// and what another needs is copied through the host's memory between their turns.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/backend.h"

namespace runnel::kernels {

// For every step of a program the index of its device.
using AssignSteps = std::function<std::vector<uint8_t>(const Program &)>;

// A block's bytes are the first device's, then the second's, and so on. Rows of logits are selected where the device
// that computes them can. What kind of device it is says which layers are where.
std::unique_ptr<Backend> make_divided_backend(std::vector<std::unique_ptr<Backend>> devices,
                                              AssignSteps assign);

}  // namespace runnel::kernels
