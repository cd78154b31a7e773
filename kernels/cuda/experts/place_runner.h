// Runs the rounds of expert_places.h for the operations of a plan that have places: owns what they keep from batch to batch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/experts/expert_places.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/runtime/launcher.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/upload/weights.h"

namespace runnel::kernels::cuda {

class PlaceRunner {
  public:
    PlaceRunner() = default;
    // Allocates memory, in which no place has an expert yet, and loads the kernels; nothing if the plan has no places.
    PlaceRunner(Stream &stream, const Program &program, const Plan &plan);

    // Bytes of device memory that the constructor will allocate.
    static size_t bytes(const Program &program, const Plan &plan);

    // Enqueues a round of an operation with places: returns GroupRowsParams::places. chosen: RouteParams::chosen.
    const int32_t *enqueue(Launcher &launcher, const ExpertsOp &op, const DeviceWeights &weights,
                           const int32_t *chosen, int32_t pairs, int32_t round);
    // The bias of the experts in the operation's places, [place][rows]; null: it has no such bias.
    const float *bias(const ExpertsOp &op, WeightId id) const;

    // Of all batches so far. Waits for the stream.
    ExpertTraffic traffic(Stream &stream) const;

  private:
    static constexpr size_t kBiases = 3;  // of gate, up and down
    struct Mixture {
        DeviceMemory used_at, counts, place_of, expert_of;  // PlaceExpertsParams
        std::array<WeightId, kBiases> biases;
        std::array<DeviceMemory, kBiases> placed_biases;
        std::array<size_t, kBiases> bias_bytes;  // of one expert
        std::array<WeightId, 3> matrices;
        std::array<size_t, 3> matrix_bytes;  // likewise, in tiles; 0: there is no such matrix
        size_t expert_bytes() const;
    };
    static Mixture sizes(const Program &program, const ExpertsOp &op);

    std::vector<Mixture> mixtures_;                       // by ExpertsOp::placed
    DeviceMemory done_, here_, fetched_, fetched_count_;  // of the current batch
};

}  // namespace runnel::kernels::cuda
