// Runs the Experts steps of a plan: owns the work memory between their kernels and launches them in order:
// router, route, group rows, gate and up, activation (if the matrix kernel does not include it), quantize, down, sum, and what
// prepares the sum for the next step. Of few tokens the first three are one launch, gate and up with their activation quantize
// their output (if `down` needs integers), and the sum prepares its output: four launches.
// A step that computes only h ends with a launch that sorts it by pairs; one that reads h begins, after the routing, with
// quantize. A step with places (expert_places.h) repeats what is between the routing and the sum for each of its rounds.
#pragma once

#include <cstdint>

#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/experts/place_runner.h"
#include "kernels/cuda/linear/linear_launch.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/runtime/launcher.h"
#include "kernels/cuda/runtime/slot_memory.h"
#include "kernels/cuda/upload/weights.h"

namespace runnel::kernels::cuda {

class ExpertRunner {
  public:
    ExpertRunner() = default;
    // Allocates memory for batches of `max_tokens` tokens and loads the kernels; nothing if the plan has no experts.
    ExpertRunner(Stream &stream, const DeviceProperties &device, const Program &program, const Plan &plan,
                 int32_t max_tokens);

    // Bytes that the constructor will allocate.
    static size_t bytes(const Program &program, const Plan &plan, int32_t max_tokens);

    // input: the step's input, quantized if the format of its matrices requires it. in, logits, add and out are
    // the step's slots, and so is chosen; add.data and chosen.data may be null.
    // router: the launch of ExpertsOp::router, without matrices if there is none. prepare, prepare_input: those of the
    // operation, if its launches are to do them; else with a null x.
    struct Operands {
        SlotMemory in, logits, add, out, chosen;
        Activations input;
        LinearParams router;
        QuantizeParams prepare, prepare_input;
        int32_t tokens;
        LinearParams::Ahead ahead;  // for the last launch of `down`, if the step has it
    };
    void enqueue(Launcher &launcher, const ExpertsOp &op, const DeviceWeights &weights,
                 const Operands &operands);

    // Of all batches so far. Waits for the stream.
    ExpertTraffic traffic(Stream &stream) const { return places_.traffic(stream); }

  private:
    struct Sizes;
    static Sizes sizes(const Plan &plan, int32_t max_tokens);
    void route(Launcher &launcher, const ExpertsOp &op, const DeviceWeights &weights,
               const Operands &operands, bool at_once);
    RouterMatrix router_matrix(const Operands &operands) const;
    GroupRowsParams group_params(const ExpertsOp &op, const DeviceWeights &weights, int32_t rows) const;
    void group_rows(Launcher &launcher, const ExpertsOp &op, const DeviceWeights &weights, int32_t rows,
                    int32_t round);
    const float *bias(const ExpertsOp &op, const DeviceWeights &weights, WeightId id) const {
        return op.places > 0 ? places_.bias(op, id) : weights.floats(id);
    }
    void gate_and_up(Launcher &launcher, const ExpertsOp &op, const DeviceWeights &weights,
                     const Operands &operands, const ExpertRows &rows);
    void write_hidden(Launcher &launcher, const ExpertsOp &op, const Operands &operands, int32_t rows);
    QuantizeParams quantize_hidden(const ExpertsOp &op, const Operands &operands, int32_t rows) const;
    bool prepares_hidden(const ExpertsOp &op, int32_t tokens) const;
    // last: of the rounds.
    void down(Launcher &launcher, const ExpertsOp &op, const DeviceWeights &weights, const Operands &operands,
              const ExpertRows &rows, bool last);
    void sum(Launcher &launcher, const ExpertsOp &op, const Operands &operands);

    DeviceMemory chosen_, weights_;           // [pair]
    DeviceMemory sources_, rows_;             // [row]: of the input that it reads; [pair]
    DeviceMemory gate_weights_, up_weights_;  // [row]: GroupRowsParams::row_weights
    DeviceMemory few_, many_, counts_;        // lists of groups; their lengths
    DeviceMemory hidden_, packed_;            // [row][gate, up]; h, quantized
    DeviceMemory results_;                    // [row][width of out]
    // Counters of finished blocks, zero between launches: one of RouterMatrix, kLinearTokens of CombineParams, then those of
    // LinearParams.
    DeviceMemory arrivals_;
    PlaceRunner places_;
};

}  // namespace runnel::kernels::cuda
