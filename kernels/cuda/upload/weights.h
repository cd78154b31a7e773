// The weights of a program in device memory: matrices as tiles, vectors unchanged, all in one allocation. Of experts
// that are not all resident (Plan::places), device memory has places without content, and pinned host memory the tiles.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/cuda/plan.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/program.h"

namespace runnel::kernels::cuda {

// Bytes of one matrix of the weight as tiles.
size_t matrix_tile_bytes(const Weight &w);

// Bytes that the upload will allocate, in device memory and in host memory.
size_t weight_memory(const Program &program, const Plan &plan);
size_t host_weight_memory(const Program &program, const Plan &plan);

class DeviceWeights {
  public:
    DeviceWeights() = default;
    // Copies and repacks through a ring of pinned buffers: the host fills one while the device processes the
    // others. Returns when everything is uploaded. `progress`, which may be empty, is called for every
    // piece. Throws BackendError.
    DeviceWeights(const Program &program, const Plan &plan, const LoadProgress &progress);

    const std::byte *tiles(WeightId id) const { return at_[static_cast<size_t>(id)]; }
    // Of a weight with places: all of its matrices, in host memory; and its places.
    const std::byte *host_tiles(WeightId id) const { return host_[static_cast<size_t>(id)].data(); }
    std::byte *places(WeightId id) const { return memory_.data() + (tiles(id) - memory_.data()); }
    const float *floats(WeightId id) const {
        return id == kNoWeight ? nullptr : reinterpret_cast<const float *>(at_[static_cast<size_t>(id)]);
    }

  private:
    DeviceMemory memory_;
    std::vector<const std::byte *> at_;  // by WeightId; null: not uploaded
    std::vector<PinnedMemory> host_;     // likewise; empty but for weights with places
};

}  // namespace runnel::kernels::cuda
