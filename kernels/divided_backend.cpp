#include "kernels/divided_backend.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "kernels/division.h"

namespace runnel::kernels {
namespace {

// "0-3 7": the layers whose K and V a share keeps.
std::string cached_layers(const Program &share) {
    const auto &layers = share.cache_layers;
    std::string text;
    for (size_t i = 0; i < layers.size(); ++i) {
        if (layers[i].kv_heads == 0) continue;
        size_t last = i;
        while (last + 1 < layers.size() && layers[last + 1].kv_heads > 0) ++last;
        text += (text.empty() ? "" : " ") + std::to_string(i);
        if (last > i) text += "-" + std::to_string(last);
        i = last;
    }
    return text;
}

class DividedBackend final : public Backend {
  public:
    DividedBackend(std::unique_ptr<Backend> first, std::unique_ptr<Backend> second, AssignSteps assign)
        : devices_{std::move(first), std::move(second)}, assign_(std::move(assign)) {}

    DeviceInfo info() const override {
        const DeviceInfo a = devices_[0]->info(), b = devices_[1]->info();
        std::string kind = a.kind + "+" + b.kind;
        for (const Program &share : division_.programs) kind += " [" + cached_layers(share) + "]";
        return {a.name + " and " + b.name, kind, a.memory_total + b.memory_total,
                a.memory_free + b.memory_free};
    }

    void load(const Program &program, const CacheConfig &cache, int32_t max_tokens) override {
        division_ = divide(program, assign_(program));
        cache_ = cache;
        logits_device_.reset();
        for (size_t d = 0; d < devices_.size(); ++d) {
            const Program &share = division_.programs[d];
            if (share.steps.empty()) continue;
            devices_[d]->load(share, cache, max_tokens);
            if (share.gives_logits()) logits_device_ = d;
        }
    }
    int64_t launches() const override { return devices_[0]->launches() + devices_[1]->launches(); }
    void on_load(LoadProgress progress) override {
        for (const auto &device : devices_) device->on_load(progress);
    }

    bool execute(const Batch &batch, std::span<float> logits) override {
        return run(batch, [&](size_t device, const Batch &part) {
            return devices_[device]->execute(part, device == logits_device_ ? logits : std::span<float>());
        });
    }
    int32_t most_candidates() const override {
        return logits_device_ ? devices_[*logits_device_]->most_candidates() : 0;
    }
    bool execute(const Batch &batch, int32_t count, std::span<Candidate> candidates,
                 std::span<float> sums) override {
        return run(batch, [&](size_t device, const Batch &part) {
            return device == logits_device_ ? devices_[device]->execute(part, count, candidates, sums)
                                            : devices_[device]->execute(part, {});
        });
    }
    void read_logits(int32_t row, std::span<float> logits) override {
        devices_[logits_device_.value()]->read_logits(row, logits);
    }

    void copy_blocks(int32_t group, std::span<const BlockCopy> copies) override {
        for (size_t d = 0; d < devices_.size(); ++d)
            if (block_bytes(d, group) > 0) devices_[d]->copy_blocks(group, copies);
    }
    void read_block(int32_t group, BlockId block, std::span<std::byte> bytes) override {
        for (size_t d = 0; d < devices_.size(); ++d) {
            const size_t own = block_bytes(d, group);
            if (own > 0) devices_[d]->read_block(group, block, bytes.first(own));
            bytes = bytes.subspan(own);
        }
    }
    void write_block(int32_t group, BlockId block, std::span<const std::byte> bytes) override {
        for (size_t d = 0; d < devices_.size(); ++d) {
            const size_t own = block_bytes(d, group);
            if (own > 0) devices_[d]->write_block(group, block, bytes.first(own));
            bytes = bytes.subspan(own);
        }
    }

  private:
    size_t block_bytes(size_t device, int32_t group) const {
        return cache_block_bytes(division_.programs[device], group, cache_.k, cache_.v);
    }

    // The turns of a batch; run_part(device, part of the batch) is false when it was cancelled.
    template <typename F>
    bool run(const Batch &batch, F &&run_part) {
        Batch part = batch;
        for (const Division::Turn &turn : division_.turns) {
            const auto index = static_cast<size_t>(turn.part);
            for (const Slot slot : division_.programs[turn.device].parts[index].in)
                copy_rows(slot, turn.device, batch.tokens.size());
            part.part = turn.part;
            if (!run_part(turn.device, part)) return false;
        }
        return true;
    }

    // Of the other device's slot into this one's.
    void copy_rows(Slot slot, size_t device, size_t tokens) {
        const auto width = division_.programs[device].slots[static_cast<size_t>(slot)].width;
        const SlotRows to = devices_[device]->exchange(slot), from = devices_[1 - device]->exchange(slot);
        for (size_t t = 0; t < tokens; ++t) {
            const auto row = static_cast<int64_t>(t);
            std::copy_n(from.data + row * from.stride, width, to.data + row * to.stride);
        }
    }

    std::array<std::unique_ptr<Backend>, 2> devices_;
    AssignSteps assign_;
    Division division_;
    CacheConfig cache_;
    std::optional<size_t> logits_device_;
};

}  // namespace

std::unique_ptr<Backend> make_divided_backend(std::unique_ptr<Backend> first, std::unique_ptr<Backend> second,
                                              AssignSteps assign) {
    return std::make_unique<DividedBackend>(std::move(first), std::move(second), std::move(assign));
}

}  // namespace runnel::kernels
