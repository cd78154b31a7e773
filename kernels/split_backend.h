// Several devices as one Backend. Each runs its partition of the program (split_program.h) and keeps K and V of
// its own layers. Slots that another device needs are copied between the stages: from device to device if the two
// can (Backend::can_copy_from), otherwise through host memory.
//
// One device works at a time, except in large batches: where each device has one stage, they are cut into parts of at least
// kPipelinedTokens (microbatches.h), and a device computes a part while the next one computes the part before it. With N devices
// that take equally long and M parts, the time is (M + N - 1) / (M N) of one device after the other.
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

// Parts of fewer tokens would read the weights more often than the devices hide. An estimate, not measured.
inline constexpr int32_t kPipelinedTokens = 256;

// A block's bytes are those of the first device, then the second, and so on. Top-k logits are selected by the
// device that computes the logits, if it can. info().kind lists the layers of each device. `names`: of the devices,
// as they begin the errors of each ("cuda:1: ..."); empty: errors name no device.
// pipelined_tokens: other than kPipelinedTokens, for tests.
std::unique_ptr<Backend> make_split_backend(std::vector<std::unique_ptr<Backend>> devices, AssignSteps assign,
                                            std::vector<std::string> names = {},
                                            int32_t pipelined_tokens = kPipelinedTokens);

}  // namespace runnel::kernels
