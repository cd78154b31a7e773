// Runs Experts steps: groups the tokens of a batch by the experts that they chose.
//
// The weights of each chosen expert are read once for all of its tokens; other experts are not read. The
// chosen (token, expert) pairs are the *rows* of the step, sorted by expert, then by token. There are five
// phases, with a barrier between them:
//   Route     per token: the experts and their weights; then the rows
//   Gather    copies the packed input of every row, so that an expert's rows form a matrix
//             (one token: its own packed input serves all rows)
//   In        gate and up products of every row: a unit is (expert, tiles of rows of its matrices)
//   Activate  applies scales and biases, then the activation, and packs h; with many tokens In does so itself, while a unit's
//             products are in the cache
//   Out       adds the down products to the output directly: a unit is a range of output columns of all
//             experts, so threads do not wait for each other and only the sum is stored
// A step without `down` ends with Activate, which writes h to the output. A step without `gate` has only Route, Activate,
// which packs the h of its input, and Out.
// The order of the sum does not depend on the batch: out = add or 0; for each expert e ascending, out =
// fma(w_e, y_e (+ bias), out), where y_e follows the contract of README.md. Before their biases are added, the
// gate and up products are multiplied by the expert's scale. With weights_on_input they are multiplied by w_e *
// scale, rounded once, and the output is not multiplied by w_e.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/linear.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/vector.h"
#include "kernels/program.h"
#include "kernels/steps.h"

namespace runnel::kernels::cpu {

class ExpertRunner {
  public:
    enum class Phase { Route, Gather, In, Activate, Out };

    // Owned by the backend; everything here outlives the runner.
    struct Surroundings {
        const Program *program;
        const LinearKernels *linear;
        const VectorKernels *vector;
        Pool *pool;
        std::span<const LazyBuffer> slots;
        std::span<const LazyBuffer> packed;   // the current step's input, by ActFormat
        std::span<const LazyBuffer> scratch;  // LinearKernels::scratch_bytes, per thread
    };

    ExpertRunner() = default;
    // Allocates memory for batches of `max_tokens` tokens. Throws BackendError{OutOfMemory}.
    ExpertRunner(const Surroundings &surroundings, int32_t max_tokens);

    // Called by all threads. after: a prefetch hint, the bytes that this thread reads after the step, or null.
    void run(const Experts &step, Phase phase, int thread, int32_t tokens, const std::byte *after) noexcept;

  private:
    // One expert's rows of the step: [first, first + count).
    struct Group {
        int32_t expert, first, count;
    };
    // Rows of one expert's gate or up matrix, from `row` on. out: the column of hidden_ that row 0 is written to.
    struct InUnit {
        const Group *group;
        const Weight *weight;
        int64_t row, out;
    };

    // Where the products of some rows and hidden columns are: the first row's gate products, those of the next row `stride` floats
    // after them, a row's up products `up` floats after its gate products.
    struct Hidden {
        float *gate;
        int64_t stride, up;
    };

    void reserve(const Experts &step, int32_t max_tokens);
    void route(const Experts &step, int thread, int32_t tokens) noexcept;
    void group_rows(const Experts &step, int32_t tokens) noexcept;
    void gather(const Experts &step, int thread, int32_t tokens) noexcept;
    void multiply_in(const Experts &step, int thread, int32_t tokens) noexcept;
    bool activates_at_once(const Experts &step, int32_t tokens) const noexcept;
    void multiply_and_activate(const Experts &step, int thread, int32_t tokens) noexcept;
    void activate(const Experts &step, int thread, int32_t tokens) noexcept;
    void activate_rows(const Experts &step, int64_t row0, int64_t row1, int64_t col0, int64_t col1,
                       const Hidden &hidden) noexcept;
    void pack_row(const Experts &step, int64_t row, const float *h, int64_t col0, int64_t col1) noexcept;
    void multiply_out(const Experts &step, int thread, int32_t tokens, const std::byte *after) noexcept;
    void add_columns(const Experts &step, int thread, int32_t tokens, int64_t col0, int64_t col1,
                     const std::byte *next) noexcept;
    template <typename Body>
    void for_units(int thread, int64_t units, bool decode, Body &&body) noexcept;
    int64_t in_units(const Experts &step) const noexcept;
    InUnit locate(const Experts &step, int64_t unit) const noexcept;
    const std::byte *in_unit(const Experts &step, int64_t unit) const noexcept;
    const std::byte *expert_input(const Experts &step, ActFormat format, const Group &group,
                                  int32_t tokens) const noexcept;

    const Weight &weight(WeightId id) const { return s_.program->weights[static_cast<size_t>(id)]; }
    const float *floats(WeightId id) const {
        return id == kNoWeight ? nullptr : reinterpret_cast<const float *>(weight(id).data);
    }
    // The bias of an expert's matrix, or null.
    const float *bias_of(WeightId id, int32_t expert) const {
        return id == kNoWeight ? nullptr : reinterpret_cast<const float *>(weight(id).matrix(expert));
    }
    float *slot_row(Slot slot, int64_t token) const noexcept;
    int32_t token_of(const Experts &step, int64_t row) const noexcept {
        return row_pair_.as<int32_t>()[row] / step.routing.used;
    }
    // h of a row in a slot, from one of its values on.
    float *hidden_in(Slot slot, const Experts &step, int64_t row, int64_t col) const noexcept {
        return s_.slots[static_cast<size_t>(slot)].as<float>() +
               row_pair_.as<int32_t>()[row] * expert_width(*s_.program, step) + col;
    }
    std::byte *scratch(int thread) const { return s_.scratch[static_cast<size_t>(thread)].data(); }

    Surroundings s_{};
    LazyBuffer chosen_, weights_;         // [token][used]
    LazyBuffer row_pair_, row_weight_;    // [row]: index into chosen_; the weight of that expert
    LazyBuffer row_group_;                // [row]: index into groups_
    std::vector<Group> groups_;           // of the current batch, experts ascending
    std::vector<int32_t> first_;          // per expert: index of its first row
    std::array<LazyBuffer, 3> gathered_;  // by ActFormat
    LazyBuffer hidden_, packed_hidden_;   // [row][gate, up], packed per expert
    std::vector<LazyBuffer> tiles_;  // per thread: products of a unit [row of an expert][columns of the unit]
    std::vector<LazyBuffer> route_scratch_;
};

}  // namespace runnel::kernels::cpu
