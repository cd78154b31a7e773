#include "engine/decode/speculation/forced_text.h"

namespace runnel::decode {
namespace {

constexpr float kFarAbove = 1e4f;

class ForcedBackend final : public kernels::Backend {
  public:
    ForcedBackend(std::unique_ptr<kernels::Backend> device, std::shared_ptr<const ForcedText> text)
        : device_(std::move(device)), text_(std::move(text)) {}

    kernels::DeviceInfo info() const override { return device_->info(); }
    int64_t launches() const override { return device_->launches(); }
    void load(const kernels::Program &program, const kernels::CacheConfig &cache,
              int32_t max_tokens) override {
        vocab_ = static_cast<size_t>(program.vocab);
        device_->load(program, cache, max_tokens);
    }
    bool execute(const kernels::Batch &batch, std::span<float> logits) override {
        if (!device_->execute(batch, logits)) return false;
        for (size_t row = 0; row < batch.logit_rows.size(); ++row) {
            const auto token = static_cast<size_t>(batch.logit_rows[row]);
            const size_t next = static_cast<size_t>(batch.positions[token]) + 1;
            if (next >= text_->tokens.size()) continue;
            const auto id = static_cast<size_t>(text_->tokens[next]);
            if (id < vocab_) logits[row * vocab_ + id] = kFarAbove;
        }
        return true;
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
    std::shared_ptr<const ForcedText> text_;
    size_t vocab_ = 0;
};

}  // namespace

std::unique_ptr<kernels::Backend> forced(std::unique_ptr<kernels::Backend> device,
                                         std::shared_ptr<const ForcedText> text) {
    return std::make_unique<ForcedBackend>(std::move(device), std::move(text));
}

}  // namespace runnel::decode
