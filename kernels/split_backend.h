// Several devices as one Backend. Each runs its partition of the program (split_program.h) and keeps K and V of
// its own layers. Slots that another device needs are copied between the stages: from device to device if the two
// can (Backend::can_copy_from), otherwise through host memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace runnel::kernels {

// Returns the device index of every step of a program.
using AssignSteps = std::function<std::vector<uint8_t>(const Program &)>;

// A block's bytes are those of the first device, then the second, and so on. Top-k logits are selected by the
// device that computes the logits, if it can. info().kind lists the layers of each device. `names`: of the devices,
// as they begin the errors of each ("cuda:1: ..."); empty: errors name no device.
std::unique_ptr<Backend> make_split_backend(std::vector<std::unique_ptr<Backend>> devices, AssignSteps assign,
                                            std::vector<std::string> names = {});

}  // namespace runnel::kernels
