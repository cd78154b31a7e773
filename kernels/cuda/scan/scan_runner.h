// Runs the recurrent steps of a plan: owns the state slots and the list of those that the batch reads and writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/runtime/launcher.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/scan/scan.h"
#include "kernels/cuda/upload/weights.h"
#include "kernels/program.h"

namespace runnel::kernels::cuda {

class ScanRunner {
  public:
    ScanRunner() = default;
    // Allocates the state slots and memory for batches of `max_tokens` tokens, and loads the kernels; nothing
    // if the program has no recurrent steps. The program must outlive the runner.
    ScanRunner(const Program &program, const CacheConfig &cache, int32_t max_tokens);

    // Bytes that the constructor will allocate: for the state slots, and for everything else.
    static size_t state_memory(const Program &program, const CacheConfig &cache);
    static size_t bytes(const Program &program, int32_t max_tokens);

    // Precondition: the copies of the last upload are done.
    void upload(Stream &stream, const Batch &batch);

    struct Operands {
        const DeviceWeights &weights;
        std::span<float *const> slots;  // of the program
        int32_t tokens;
    };
    void enqueue(Launcher &launcher, const ShortConv &step, const Operands &operands) const;
    void enqueue(Launcher &launcher, const SoftPool &step, const Operands &operands) const;
    void enqueue(Launcher &launcher, const ScanGate &step, const Operands &operands) const;
    void enqueue(Launcher &launcher, const LinearScan &step, const Operands &operands) const;
    void enqueue(Launcher &launcher, const SelectiveScan &step, const Operands &operands) const;

    // As in Backend; they return when they are done.
    void read(Stream &stream, StateId slot, std::span<std::byte> bytes) const;
    void write(Stream &stream, StateId slot, std::span<const std::byte> bytes) const;

  private:
    ScanBatch batch() const;
    ScanStates states(int32_t layer) const;
    // Calls f(memory, bytes) for the state of every layer.
    template <typename F>
    void visit(StateId slot, F f) const;

    const Program *program_ = nullptr;
    int32_t max_tokens_ = 0;
    int64_t slot_ = 0;              // floats of a slot
    std::vector<int64_t> offsets_;  // of the layers in a slot
    DeviceMemory states_, batch_;
    PinnedMemory host_;  // of batch_
};

}  // namespace runnel::kernels::cuda
