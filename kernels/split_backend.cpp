#include "kernels/split_backend.h"

#include <algorithm>
#include <cassert>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>

#include "kernels/partition.h"
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
    SplitBackend(std::vector<std::unique_ptr<Backend>> devices, AssignSteps assign,
                 std::vector<std::string> names)
        : devices_(std::move(devices)), assign_(std::move(assign)), names_(std::move(names)) {
        assert(names_.empty() || names_.size() == devices_.size());
    }

    DeviceInfo info() const override {
        DeviceInfo all = joined_info(devices_);
        for (const Program &partition : split_.programs) all.kind += " [" + cached_layers(partition) + "]";
        return all;
    }

    void load(const Program &program, const CacheConfig &cache, int32_t max_tokens) override {
        split_ = split_program(program, assign_(program), devices_.size());
        cache_ = cache;
        logits_device_.reset();
        plan_copies();
        for (size_t d = 0; d < devices_.size(); ++d) {
            const Program &partition = split_.programs[d];
            if (partition.steps.empty()) continue;
            on_device(d, [&] { devices_[d]->load(partition, cache, max_tokens); });
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
                 std::span<ExpSum> sums) override {
        return run(batch, [&](size_t device, const Batch &part) {
            return device == logits_device_ ? devices_[device]->execute(part, count, candidates, sums)
                                            : devices_[device]->execute(part, {});
        });
    }
    void read_logits(int32_t row, std::span<float> logits) override {
        devices_[logits_device_.value()]->read_logits(row, logits);
    }

    SlotRows exchange(Slot slot) override { return devices_[split_.outside.at(slot)]->exchange(slot); }

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

    // A slot that a stage reads and another device has written.
    struct Handover {
        Slot slot;
        size_t writer;
        bool direct;  // by Backend::copy_slot(); otherwise through host memory
    };

    // Chooses how each slot crosses. Slots that are copied directly leave the lists of the parts, for which the
    // devices copy to and from host memory.
    void plan_copies() {
        handovers_.assign(split_.stages.size(), {});
        std::set<std::pair<size_t, Slot>> through_host;  // the writer, and what it must copy to host memory
        for (const auto &[slot, device] : split_.outside) through_host.emplace(device, slot);
        for (size_t s = 0; s < split_.stages.size(); ++s) {
            const SplitProgram::Stage &stage = split_.stages[s];
            std::vector<Slot> &in = split_.programs[stage.device].parts[static_cast<size_t>(stage.part)].in;
            std::vector<Slot> from_host;
            for (size_t i = 0; i < in.size(); ++i) {
                const size_t writer = stage.from[i];
                const bool outside = writer == stage.device;
                const bool direct = !outside && on_device(stage.device, [&] {
                    return devices_[stage.device]->can_copy_from(*devices_[writer]);
                });
                if (!direct) from_host.push_back(in[i]);
                if (outside) continue;
                handovers_[s].push_back({in[i], writer, direct});
                if (!direct) through_host.emplace(writer, in[i]);
            }
            in = std::move(from_host);
        }
        for (size_t d = 0; d < devices_.size(); ++d)
            for (Program::Part &part : split_.programs[d].parts)
                std::erase_if(part.out, [&](Slot slot) { return !through_host.contains({d, slot}); });
    }

    // Runs the stages of a batch's part in order; run_part(device, part) returns false when the batch was cancelled.
    template <typename F>
    bool run(const Batch &batch, F &&run_part) {
        Batch part = batch;
        const auto now = static_cast<size_t>(batch.part);
        for (size_t s = now == 0 ? 0 : split_.part_ends[now - 1]; s < split_.part_ends[now]; ++s) {
            const SplitProgram::Stage &stage = split_.stages[s];
            part.part = stage.part;
            const bool done = on_device(stage.device, [&] {
                for (const Handover &handover : handovers_[s])
                    hand_over(handover, stage.device, batch.tokens.size());
                return run_part(stage.device, part);
            });
            if (!done) return false;
        }
        return true;
    }

    void hand_over(const Handover &handover, size_t reader, size_t tokens) {
        if (handover.direct)
            devices_[reader]->copy_slot(handover.slot, *devices_[handover.writer],
                                        static_cast<int32_t>(tokens));
        else
            copy_rows(handover.slot, handover.writer, reader, tokens);
    }

    // Calls f; an error gets the device's name.
    template <typename F>
    std::invoke_result_t<F> on_device(size_t device, F &&f) const {
        try {
            return f();
        } catch (const BackendError &error) {
            if (names_.empty()) throw;
            throw BackendError(error.kind, names_[device] + ": " + error.what());
        }
    }

    // Copies rows of a slot from one device to another, through host memory.
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
    std::vector<std::string> names_;  // by device, or empty
    SplitProgram split_;
    std::vector<std::vector<Handover>> handovers_;  // by stage
    CacheConfig cache_;
    std::optional<size_t> logits_device_;
};

}  // namespace

std::unique_ptr<Backend> make_split_backend(std::vector<std::unique_ptr<Backend>> devices, AssignSteps assign,
                                            std::vector<std::string> names) {
    return std::make_unique<SplitBackend>(std::move(devices), std::move(assign), std::move(names));
}

}  // namespace runnel::kernels
