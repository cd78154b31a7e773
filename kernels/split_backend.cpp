#include "kernels/split_backend.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "kernels/split_program.h"

namespace runnel::kernels {
namespace {

// The numbers below `count` for which has(number) is true, as text such as "0-3 7".
template <typename F>
std::string ranges(size_t count, F &&has) {
    std::string text;
    for (size_t i = 0; i < count; ++i) {
        if (!has(i)) continue;
        size_t last = i;
        while (last + 1 < count && has(last + 1)) ++last;
        text += (text.empty() ? "" : " ") + std::to_string(i);
        if (last > i) text += "-" + std::to_string(last);
        i = last;
    }
    return text;
}

// The layers whose K and V a partition keeps, then, if the program has recurrent layers, the states.
std::string cached_layers(const Program &partition) {
    const auto &layers = partition.cache_layers;
    const auto &states = partition.state_layers;
    const std::string kv = ranges(layers.size(), [&](size_t i) { return layers[i].kv_heads > 0; });
    if (states.empty()) return kv;
    return kv + "; " + ranges(states.size(), [&](size_t i) { return states[i].floats > 0; });
}

class SplitBackend final : public Backend {
  public:
    SplitBackend(std::vector<std::unique_ptr<Backend>> devices, AssignSteps assign)
        : devices_(std::move(devices)), assign_(std::move(assign)) {}

    DeviceInfo info() const override {
        DeviceInfo all;
        for (const auto &device : devices_) {
            const DeviceInfo info = device->info();
            all.name += (all.name.empty() ? "" : " and ") + info.name;
            all.kind += (all.kind.empty() ? "" : "+") + info.kind;
            all.memory_total += info.memory_total;
            all.memory_free += info.memory_free;
        }
        for (const Program &partition : split_.programs) all.kind += " [" + cached_layers(partition) + "]";
        return all;
    }

    void load(const Program &program, const CacheConfig &cache, int32_t max_tokens) override {
        split_ = split_program(program, assign_(program), devices_.size());
        cache_ = cache;
        logits_device_.reset();
        for (size_t d = 0; d < devices_.size(); ++d) {
            const Program &partition = split_.programs[d];
            if (partition.steps.empty()) continue;
            devices_[d]->load(partition, cache, max_tokens);
            if (partition.gives_logits()) logits_device_ = d;
        }
    }
    int64_t launches() const override {
        int64_t all = 0;
        for (const auto &device : devices_) all += device->launches();
        return all;
    }
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
    bool execute(const Batch &batch, int32_t count, std::span<TopLogit> candidates,
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

    void read_state(StateId slot, std::span<std::byte> bytes) override {
        for (size_t d = 0; d < devices_.size(); ++d) {
            const size_t own = state_bytes(split_.programs[d]);
            if (own > 0) devices_[d]->read_state(slot, bytes.first(own));
            bytes = bytes.subspan(own);
        }
    }
    void write_state(StateId slot, std::span<const std::byte> bytes) override {
        for (size_t d = 0; d < devices_.size(); ++d) {
            const size_t own = state_bytes(split_.programs[d]);
            if (own > 0) devices_[d]->write_state(slot, bytes.first(own));
            bytes = bytes.subspan(own);
        }
    }

  private:
    size_t block_bytes(size_t device, int32_t group) const {
        return cache_block_bytes(split_.programs[device], group, cache_.k, cache_.v);
    }

    // Runs the stages of a batch in order; run_part(device, part) returns false when the batch was cancelled.
    template <typename F>
    bool run(const Batch &batch, F &&run_part) {
        Batch part = batch;
        for (const SplitProgram::Stage &stage : split_.stages) {
            const auto &in = split_.programs[stage.device].parts[static_cast<size_t>(stage.part)].in;
            for (size_t i = 0; i < in.size(); ++i)
                copy_rows(in[i], stage.from[i], stage.device, batch.tokens.size());
            part.part = stage.part;
            if (!run_part(stage.device, part)) return false;
        }
        return true;
    }

    // Copies rows of a slot from one device to another.
    void copy_rows(Slot slot, size_t writer, size_t reader, size_t tokens) {
        const auto width = split_.programs[reader].slots[static_cast<size_t>(slot)].width;
        const SlotRows to = devices_[reader]->exchange(slot), from = devices_[writer]->exchange(slot);
        for (size_t t = 0; t < tokens; ++t) {
            const auto row = static_cast<int64_t>(t);
            std::copy_n(from.data + row * from.stride, width, to.data + row * to.stride);
        }
    }

    std::vector<std::unique_ptr<Backend>> devices_;
    AssignSteps assign_;
    SplitProgram split_;
    CacheConfig cache_;
    std::optional<size_t> logits_device_;
};

}  // namespace

std::unique_ptr<Backend> make_split_backend(std::vector<std::unique_ptr<Backend>> devices,
                                            AssignSteps assign) {
    return std::make_unique<SplitBackend>(std::move(devices), std::move(assign));
}

}  // namespace runnel::kernels
