// The class behind make_cuda_backend(): a program on one GPU. cuda_backend.cpp loads it and executes batches,
// cuda_steps.cpp turns each operation of its plan (plan.h) into launches.
#pragma once

#include <map>
#include <type_traits>
#include <vector>

#include "kernels/cuda/attention/attention_runner.h"
#include "kernels/cuda/attention/kv_memory.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/experts/expert_runner.h"
#include "kernels/cuda/indexer/indexer_runner.h"
#include "kernels/cuda/linear/head_runner.h"
#include "kernels/cuda/linear/quantize.h"
#include "kernels/cuda/look_ahead.h"
#include "kernels/cuda/nccl/gathers.h"
#include "kernels/cuda/nccl/messages.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/runtime/batch_input.h"
#include "kernels/cuda/runtime/devices.h"
#include "kernels/cuda/runtime/launcher.h"
#include "kernels/cuda/runtime/memory_need.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/scan/scan_runner.h"
#include "kernels/cuda/select/logits_runner.h"
#include "kernels/cuda/upload/weights.h"

namespace runnel::kernels::cuda {

// Batch parts with equal keys have the same launches: only the content of device memory differs.
struct GraphKey {
    int32_t part, tokens, logit_rows, candidates;
    bool shares, masked;
    bool gathers;  // between device memories: no copies of slots to host memory
    AttentionLaunches attention;
    auto operator<=>(const GraphKey &) const = default;
};

class CudaBackend final : public Backend {
  public:
    explicit CudaBackend(int device);  // throws BackendError if its kernels do not run there

    DeviceInfo info() const override {
        DeviceInfo info = find_devices().found.at(static_cast<size_t>(device_));
        info.memory_free = free_memory(device_);
        return info;
    }
    void load(const Program &program, const CacheConfig &cache, int32_t max_tokens) override;
    void on_load(LoadProgress progress) override { progress_ = std::move(progress); }
    bool execute(const Batch &batch, std::span<float> logits) override;
    int32_t most_candidates() const override { return plan_.logits ? kMaxCandidates : 0; }
    bool execute(const Batch &batch, int32_t count, std::span<TopLogit> candidates,
                 std::span<ExpSum> sums) override;
    void read_logits(int32_t row, std::span<float> logits) override;
    int64_t launches() const override { return stream_.launched(); }
    ExpertTraffic expert_traffic() override {
        use_device(device_);
        return experts_.traffic(stream_);
    }
    void connect(Communicator &ranks) override { messages_.connect(ranks); }
    SlotRows exchange(Slot slot) override { return {exchange_.at(slot).as<float>(), stride(slot)}; }
    DeviceGathers *gathers() override { return &gathers_; }
    bool can_copy_from(const Backend &writer) const override {
        const auto *gpu = dynamic_cast<const CudaBackend *>(&writer);
        return gpu != nullptr && launcher_.switches().peer && can_copy_directly(device_, gpu->device_);
    }
    void copy_slot(Slot id, const Backend &writer, int32_t tokens) override {
        const auto &gpu = dynamic_cast<const CudaBackend &>(writer);
        use_device(device_);
        stream_.copy_from_device(slot(id), device_, gpu.slot(id), gpu.device_,
                                 static_cast<size_t>(stride(id) * tokens) * sizeof(float));
    }
    void wait_for_copies() override {
        use_device(device_);
        stream_.wait();
    }
    void copy_blocks(int32_t group, std::span<const BlockCopy> copies) override {
        use_device(device_);
        cache_.copy(stream_, group, copies);
    }
    void read_block(int32_t group, BlockId block, std::span<std::byte> bytes) override {
        use_device(device_);
        cache_.read(stream_, group, block, bytes);
    }
    void write_block(int32_t group, BlockId block, std::span<const std::byte> bytes) override {
        use_device(device_);
        cache_.write(stream_, group, block, bytes);
    }
    std::shared_ptr<const CachePools> cache_pools() const override { return cache_.pools(); }
    void read_state(StateId slot, std::span<std::byte> bytes) override {
        use_device(device_);
        scans_.read(stream_, slot, bytes);
    }
    void write_state(StateId slot, std::span<const std::byte> bytes) override {
        use_device(device_);
        scans_.write(stream_, slot, bytes);
    }

  private:
    void allocate();
    void prepare_kernels(const CacheConfig &cache);

    bool start(const Batch &batch, int32_t candidates);
    bool attends_divided(int32_t part) const;
    void replay();
    void enqueue();
    void hand_over(std::span<const Slot> slots, bool out);
    void enqueue(const Embed &op);
    void embed(WeightId id, const int32_t *rows, float scale, Slot out, bool add);
    void enqueue(const Norm &op);
    void enqueue(const PrepareOp &op);
    void enqueue(const LinearOp &op);
    void enqueue(const HeadLinear &op);
    void enqueue(const CopyOp &op);
    void enqueue(const Rotate &op);
    void enqueue(const Mix &op);
    void enqueue(const StreamWeights &op);
    void enqueue(const Lerp &op);
    void enqueue(const Rope &op) { attention_.enqueue(launcher_, op, attention_operands()); }
    void enqueue(const JoinAttention &op);
    AttentionRunner::Operands attention_operands() {
        return {weights_, cache_, input_, slots_, tokens_, shares_, now_.attention, divided_, messages_};
    }
    void enqueue(const AttentionOp &op);
    void enqueue(const Indexer &op) { indexer_.enqueue(launcher_, op, attention_, attention_operands()); }
    void enqueue(const ActivateOp &op);
    void enqueue_logits(int32_t first, int32_t count);
    void enqueue(const ExpertsOp &op);
    template <class Scan>  // a recurrent step
    void enqueue(const Scan &step) {
        scans_.enqueue(launcher_, step, {weights_, slots_, tokens_});
    }

    template <class Params>
    void run(const Kernel<Params> &kernel, int64_t blocks, SharedBytes shared,
             const std::type_identity_t<Params> &params) {
        launcher_.run(kernel, blocks, shared, params);
    }
    template <class Params>
    void launch_exact(const Kernel<Params> &kernel, int64_t blocks, SharedBytes shared,
                      const std::type_identity_t<Params> &params) {
        launcher_.run_exactly(kernel, blocks, shared, params);
    }

    const Weight &weight(WeightId id) const { return program_.weights[static_cast<size_t>(id)]; }
    int64_t width(Slot slot) const { return program_.slots[static_cast<size_t>(slot)].width; }
    int64_t stride(Slot slot) const { return stride_of(width(slot)); }
    float *slot(Slot slot) const { return slots_[static_cast<size_t>(slot)]; }
    // Large batches are always quantized by a kernel of their own and use one buffer.
    Activations quantized(int64_t cols, int buffer) const {
        const bool second = buffer == 1 && tokens_ <= kLinearTokens;
        return place_activations((second ? second_quantized_ : quantized_).data(), cols,
                                 second ? kLinearTokens : max_tokens_, plan_.forms_at(cols));
    }
    QuantizeParams quantize_params(const PrepareOp &op) const;
    LinearParams matrices_of(const LinearOp &op) const;
    bool prepared_later(const PrepareOp &op) const;

    const int device_;
    const DeviceProperties properties_;
    Program program_;
    Plan plan_;
    std::vector<Program::Part> parts_;
    int32_t max_tokens_ = 0;
    LoadProgress progress_;
    DeviceWeights weights_;
    KvMemory cache_;
    DeviceMemory activations_, quantized_, second_quantized_;
    DeviceMemory arrivals_;                  // LinearParams::arrivals
    std::vector<float *> slots_;             // in activations_
    std::map<Slot, PinnedMemory> exchange_;  // for the slots that cross devices
    BatchInput input_;
    AttentionRunner attention_;
    DividedAttention divided_;
    IndexerRunner indexer_;
    ExpertRunner experts_;
    HeadRunner heads_;
    ScanRunner scans_;
    LogitsRunner logits_;
    std::map<GraphKey, Graph> graphs_;
    GraphKey now_{};                       // of the current part
    int32_t tokens_ = 0, logit_rows_ = 0;  // of the current batch
    LinearParams::Ahead ahead_;            // of the operation that is being enqueued
    bool shares_ = false;                  // some sequence of the batch has shared cells
    Stream stream_;                        // destroyed before all memory
    Launcher launcher_{stream_, properties_};
    LookAhead look_ahead_{program_, plan_, weights_, properties_};
    NcclGathers gathers_{{device_, program_, max_tokens_, slots_, exchange_, stream_, launcher_}};
    Messages messages_{gathers_, stream_};
};

}  // namespace runnel::kernels::cuda
