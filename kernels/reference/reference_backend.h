// The reference Backend: executes the steps of kernels/program.h as they are written there, in double
// precision, one after the other. It shares no code with the kernels of any device.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"

namespace runnel::kernels::reference {

// Keys and values are rounded to the cache's type, F32, F16 or BF16. load() throws BackendError{NoKernel} for
// another cache type and for a partition of a program.
std::unique_ptr<Backend> make_reference_backend();

// Logits of all tokens of one sequence, [tokens][vocab], with a cache in F16.
std::vector<float> logits_of(const Program &program, std::span<const int32_t> tokens);

}  // namespace runnel::kernels::reference
