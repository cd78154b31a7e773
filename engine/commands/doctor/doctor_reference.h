// The plain arithmetic that doctor holds every device against: the steps of kernels/program.h as they are
// written down there, in double precision, one row after the other. No device's kernels have a part in it.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/program.h"

namespace runnel::commands {

// Logits of all tokens of one sequence, [tokens][vocab]; the tokens' ids are their positions, 0 ... tokens -
// 1. Keys and values are rounded to binary16, as a cache of that type does.
std::vector<float> plain_logits(const kernels::Program &program, int32_t tokens);

}  // namespace runnel::commands
