// The plain arithmetic that every device is held against, as a Backend: the steps of kernels/program.h as they
// are written down there, in double precision, one after the other. No device's kernels have a part in it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"

namespace runnel::kernels::reference {

// Keys and values are rounded to the cache's type, F16 or BF16. load() throws BackendError{NoKernel} for
// another type and for a share of a program.
std::unique_ptr<Backend> make_reference_backend();

// Logits of all tokens of one sequence, [tokens][vocab], with a cache in F16.
std::vector<float> logits_of(const Program &program, std::span<const int32_t> tokens);

}  // namespace runnel::kernels::reference
