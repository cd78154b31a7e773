// Which weights the matrix kernels of up to eight tokens fetch into L2 for the launches after them (LinearParams::ahead).
//
// Between two launches that read weights, memory would be idle: while the last blocks finish and norm their outputs, the
// next launch starts, and attention runs. What the next matrices read first is fetched in that time, as much
// as a quarter of L2 holds.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/upload/weights.h"

namespace runnel::kernels::cuda {

class LookAhead {
  public:
    // All of them must outlive it.
    LookAhead(const Program &program, const Plan &plan, const DeviceWeights &weights,
              const DeviceProperties &device)
        : program_(program), plan_(plan), weights_(weights), device_(device) {}

    // The first weights that operations [from, end) of the plan read, or, if none of them has a matrix and `logits`, the
    // logits. Nothing if heads come first, whose matrices are small, or experts, which a launch cannot know; but their router.
    LinearParams::Ahead first_of(size_t from, size_t end, bool logits) const;

  private:
    LinearParams::Ahead of_matrices(std::span<const WeightId> ids, bool gated) const;

    const Program &program_;
    const Plan &plan_;
    const DeviceWeights &weights_;
    const DeviceProperties &device_;
};

}  // namespace runnel::kernels::cuda
