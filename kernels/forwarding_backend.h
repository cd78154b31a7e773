// A Backend that forwards every call to another one: the base of wrappers that change some calls.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "kernels/backend.h"

namespace runnel::kernels {

class ForwardingBackend : public Backend {
  public:
    explicit ForwardingBackend(std::unique_ptr<Backend> device) : device_(std::move(device)) {}

    DeviceInfo info() const override { return device_->info(); }
    void load(const Program &program, const CacheConfig &cache, int32_t max_tokens) override {
        device_->load(program, cache, max_tokens);
    }
    void on_load(LoadProgress progress) override { device_->on_load(std::move(progress)); }
    void connect(Communicator &ranks) override { device_->connect(ranks); }
    bool execute(const Batch &batch, std::span<float> logits) override {
        return device_->execute(batch, logits);
    }
    int32_t most_candidates() const override { return device_->most_candidates(); }
    bool execute(const Batch &batch, int32_t count, std::span<TopLogit> candidates,
                 std::span<ExpSum> sums) override {
        return device_->execute(batch, count, candidates, sums);
    }
    void read_logits(int32_t row, std::span<float> logits) override { device_->read_logits(row, logits); }
    SlotRows exchange(Slot slot) override { return device_->exchange(slot); }
    DeviceGathers *gathers() override { return device_->gathers(); }
    std::string gather_note() const override { return device_->gather_note(); }
    void copy_blocks(int32_t group, std::span<const BlockCopy> copies) override {
        device_->copy_blocks(group, copies);
    }
    void read_block(int32_t group, BlockId block, std::span<std::byte> bytes) override {
        device_->read_block(group, block, bytes);
    }
    std::span<std::byte> block_memory(int32_t group, BlockId block) override {
        return device_->block_memory(group, block);
    }
    std::shared_ptr<const CachePools> cache_pools() const override { return device_->cache_pools(); }
    void write_block(int32_t group, BlockId block, std::span<const std::byte> bytes) override {
        device_->write_block(group, block, bytes);
    }
    void read_state(StateId slot, std::span<std::byte> bytes) override { device_->read_state(slot, bytes); }
    void write_state(StateId slot, std::span<const std::byte> bytes) override {
        device_->write_state(slot, bytes);
    }
    int64_t launches() const override { return device_->launches(); }
    ExpertTraffic expert_traffic() override { return device_->expert_traffic(); }

  private:
    std::unique_ptr<Backend> device_;
};

}  // namespace runnel::kernels
