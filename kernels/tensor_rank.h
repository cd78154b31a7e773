// One rank of a tensor split (tensor_program.h): runs its parts of a batch on its device, and the gathers between them
// through a communicator, or directly between the devices (device_gathers.h). All ranks execute the same batches in the same
// order, each on a thread of its own.
//
// Through a communicator, a rank waits for its device before each gather, and the ranks agree there whether the batch is
// cancelled. Between devices, gathers are enqueued like parts, and the ranks' threads run ahead of the devices: they agree
// every 16 stages (four layers of a dense model) and wait there until their devices have done all stages but the last 16.
// So a cancelled batch ends within 32 stages, and a device always has work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/communicator.h"
#include "kernels/device_gathers.h"
#include "kernels/tensor_logits.h"
#include "kernels/tensor_program.h"

namespace runnel::kernels {

class TensorRank {
  public:
    // The device has loaded the rank's program, and is connected to the other ranks here. `gathers`: those of the device, if
    // the devices of all ranks have joined; null: gathers go through the communicator. All arguments must outlive the rank.
    TensorRank(Backend &device, Communicator &communicator, const TensorProgram &tensor,
               DeviceGathers *gathers = nullptr);
    ~TensorRank();

    // As Backend::execute(). logits: of rank 0 only; the other ranks' spans are empty. Rank 0's `cancel` decides, and all
    // ranks stop before the same stage; with one rank, the device decides. An error of the device ends the operations of
    // all ranks and is kept in error().
    bool execute(const Batch &batch, std::span<float> logits);
    // The same with candidates (tensor_logits.h): all ranks have the masks of whole rows.
    bool execute(const Batch &batch, int32_t count, std::span<TopLogit> candidates, std::span<ExpSum> sums);
    int32_t most_candidates() const;
    // As Backend::read_logits(); by all ranks. With one rank whose device does not select, it throws.
    void read_logits(int32_t row, std::span<float> logits);
    std::exception_ptr error() const { return error_; }

  private:
    // The communicator as the device uses it within a step: notices that it fails.
    class Link;

    template <typename F>
    auto on_device(F &&f);
    template <typename F>
    auto or_fail_all(F &&f);
    bool run(const Batch &batch, std::span<float> logits);
    bool select(const Batch &batch, int32_t count, std::span<TopLogit> candidates, std::span<ExpSum> sums);
    template <typename Last>
    bool run_stages(const Batch &batch, Last &&execute_last);
    bool alone() const { return communicator_.size() == 1; }
    size_t logit_rows(const Batch &batch) const;
    bool gather(const Gather &gather, size_t tokens, bool cancelled);
    bool go_on(bool cancelled);
    void enqueue(const Gather &gather, size_t tokens);
    int64_t width(Slot slot) const { return tensor_.programs[rank_].slots[static_cast<size_t>(slot)].width; }

    Backend &device_;
    Communicator &communicator_;
    const TensorProgram &tensor_;
    const size_t rank_;
    std::unique_ptr<Link> link_;
    DeviceGathers *const gathers_;
    std::vector<std::set<Slot>> received_;  // by rank: slots that it gets from gathers
    std::vector<std::byte> pieces_;         // of a gather; only grows
    TensorLogits logits_;
    std::exception_ptr error_;
};

}  // namespace runnel::kernels
