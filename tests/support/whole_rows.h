// Wraps a device and disables its top-k selection, so that tokens are chosen from full
// rows.
#pragma once

#include <memory>
#include <utility>

#include "kernels/backend.h"

namespace runnel::testing {

class WholeRows final : public kernels::Backend {
  public:
    explicit WholeRows(std::unique_ptr<kernels::Backend> device) : device_(std::move(device)) {}

    kernels::DeviceInfo info() const override { return device_->info(); }
    void load(const kernels::Program &program, const kernels::CacheConfig &cache,
              int32_t max_tokens) override {
        device_->load(program, cache, max_tokens);
    }
    bool execute(const kernels::Batch &batch, std::span<float> logits) override {
        return device_->execute(batch, logits);
    }
    void copy_blocks(int32_t group, std::span<const kernels::BlockCopy> copies) override {
        device_->copy_blocks(group, copies);
    }
    void read_block(int32_t group, kernels::BlockId block, std::span<std::byte> bytes) override {
        device_->read_block(group, block, bytes);
    }
    void write_block(int32_t group, kernels::BlockId block, std::span<const std::byte> bytes) override {
        device_->write_block(group, block, bytes);
    }

  private:
    std::unique_ptr<kernels::Backend> device_;
};

}  // namespace runnel::testing
