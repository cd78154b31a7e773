// The gathers of a tensor split between GPUs of one process (kernels/device_gathers.h), through NCCL.
//
// A gather packs the rank's piece of every row into a buffer [tokens][piece], sends it to the ranks that receive the slot
// and receives theirs, and unpacks all pieces into the slot: two launches of copy_pieces_kernel() around one operation of
// NCCL, all on the backend's stream. Pieces may differ in size, so they are grouped sends and receives.
//
// NCCL's kernels wait on the device until those of the other ranks run, so while one is in flight, a rank must not do what
// waits for an idle device inside the driver (allocate memory, instantiate a graph): it calls wait() before.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/nccl/group.h"
#include "kernels/cuda/runtime/launcher.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/device_gathers.h"

namespace runnel::kernels::cuda {

class NcclGathers final : public DeviceGathers {
  public:
    // The backend's own, which must outlive this; the program's once it is loaded.
    struct Device {
        const int number;
        const Program &program;
        const int32_t &max_tokens;
        const std::vector<float *> &slots;              // [max_tokens][stride_of(width)]
        const std::map<Slot, PinnedMemory> &exchanged;  // Backend::exchange()
        Stream &stream;
        Launcher &launcher;
    };
    explicit NcclGathers(const Device &device) : device_(device) {}
    ~NcclGathers() override { leave(); }

    // What join() takes of device memory for a rank's program: the buffer, and an estimate of NCCL's own.
    static size_t memory(const Program &program, int32_t max_tokens);

    std::string join(std::span<DeviceGathers *const> ranks) override;
    void leave() noexcept override;
    bool joined() const { return group_ != nullptr; }

    void gather(const Gather &gather, int32_t tokens, std::span<const char> receivers) override;
    // Bytes of device memory, a multiple of 4, to or from another rank.
    struct Message {
        int rank;
        std::byte *data;
        size_t bytes;
    };
    // Enqueues messages besides those of gathers, as one operation. All ranks call it at the same point of their work.
    // Precondition: joined().
    void exchange(std::span<const Message> sends, std::span<const Message> receives);
    void copy_in(Slot slot, int32_t tokens) override;
    void copy_out(Slot slot, int32_t tokens) override;
    void wait_for_earlier() override;
    void wait() override;
    void abort() noexcept override;
    bool aborted() const override { return group_ && group_->aborted(); }

  private:
    void connect(std::shared_ptr<nccl::Group> group, size_t rank);
    static void check_links(std::span<NcclGathers *const> ranks);
    void pack(const Gather &gather, int32_t tokens, float *piece);
    void unpack(const Gather &gather, int32_t tokens);
    int64_t width(Slot slot) const { return device_.program.slots[static_cast<size_t>(slot)].width; }
    float *slot(Slot slot) const { return device_.slots[static_cast<size_t>(slot)]; }
    size_t bytes(Slot slot, int32_t tokens) const;

    const Device device_;
    std::shared_ptr<nccl::Group> group_;  // of all ranks; null: not joined
    size_t rank_ = 0;
    DeviceMemory pieces_;  // of a gather, by rank, if this rank receives it; else its own alone
    std::optional<Event> earlier_, last_;
};

}  // namespace runnel::kernels::cuda
