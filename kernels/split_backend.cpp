#include "kernels/split_backend.h"

#include <algorithm>
#include <cassert>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>

#include "gguf/base/trace.h"
#include "kernels/microbatches.h"
#include "kernels/partition.h"
#include "kernels/rank_threads.h"
#include "kernels/split_program.h"
#include "kernels/stage_order.h"

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
                 std::vector<std::string> names, int32_t pipelined_tokens)
        : devices_(std::move(devices)),
          assign_(std::move(assign)),
          names_(std::move(names)),
          pipelined_tokens_(pipelined_tokens) {
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
        plan_pipeline();
    }
    int64_t launches() const override {
        int64_t all = 0;
        for (const auto &device : devices_) all += device->launches();
        return all;
    }
    ExpertTraffic expert_traffic() override {
        ExpertTraffic all;
        for (const auto &device : devices_) all += device->expert_traffic();
        return all;
    }
    void on_load(LoadProgress progress) override {
        for (const auto &device : devices_) device->on_load(progress);
    }

    bool execute(const Batch &batch, std::span<float> logits) override {
        if (is_large(batch))
            if (const Microbatches parts(batch, pipelined_tokens_); parts.size() > 1)
                return run_pipelined(parts, [&](size_t device, size_t i) {
                    const size_t row = batch.logit_rows.empty() ? 0 : logits.size() / batch.logit_rows.size();
                    const size_t first = parts.rows_before(i) * row, size = parts[i].logit_rows.size() * row;
                    return devices_[device]->execute(parts[i], device == logits_device_
                                                                   ? logits.subspan(first, size)
                                                                   : std::span<float>());
                });
        return run(batch, [&](size_t device, const Batch &part) {
            return devices_[device]->execute(part, device == logits_device_ ? logits : std::span<float>());
        });
    }
    int32_t most_candidates() const override {
        return logits_device_ ? devices_[*logits_device_]->most_candidates() : 0;
    }
    bool execute(const Batch &batch, int32_t count, std::span<TopLogit> candidates,
                 std::span<ExpSum> sums) override {
        // (read_logits() has rows of the last part only.)
        if (is_large(batch))
            if (const Microbatches parts(batch, pipelined_tokens_);
                parts.size() > 1 && parts.rows_in_last_only())
                return run_pipelined(parts, [&](size_t device, size_t i) {
                    const bool selects = device == logits_device_ && i + 1 == parts.size();
                    return selects ? devices_[device]->execute(parts[i], count, candidates, sums)
                                   : devices_[device]->execute(parts[i], {});
                });
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

    std::shared_ptr<const CachePools> cache_pools() const override {
        return devices_.size() == 1 ? devices_.front()->cache_pools() : nullptr;
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

    // Devices can work at the same time if each has one stage, and no slot crosses the border of the program, where its rows
    // would be those of a part.
    void plan_pipeline() {
        stage_of_.assign(devices_.size(), std::nullopt);
        pipelines_ = split_.outside.empty() && split_.part_ends.size() == 1 && split_.stages.size() > 1;
        for (size_t s = 0; s < split_.stages.size(); ++s) {
            std::optional<size_t> &stage = stage_of_[split_.stages[s].device];
            pipelines_ = pipelines_ && !stage;
            stage = s;
        }
        if (pipelines_ && !threads_) threads_.emplace(devices_.size());
    }
    // Whether to cut the batch. (The steps of devices on other threads would be missing in a profile.)
    bool is_large(const Batch &batch) const {
        const bool profiled = base::Trace::current() != nullptr && base::Trace::current()->has_steps();
        return pipelines_ && !profiled && batch.tokens.size() >= 2 * static_cast<size_t>(pipelined_tokens_);
    }

    // Runs the stages of all parts, each device on a thread of its own; run_part(device, i) returns false when the batch was
    // cancelled.
    template <typename F>
    bool run_pipelined(const Microbatches &parts, F &&run_part) {
        std::vector<std::vector<size_t>> writers(split_.stages.size());
        for (size_t s = 0; s < writers.size(); ++s)
            for (const Handover &handover : handovers_[s])
                if (const size_t writer = stage_of_[handover.writer].value();
                    std::ranges::count(writers[s], writer) == 0)
                    writers[s].push_back(writer);
        StageOrder order(std::move(writers));
        threads_->run([&](size_t device) {
            const std::optional<size_t> stage = stage_of_[device];
            if (!stage) return;
            order.run(
                *stage, parts.size(),
                [&](size_t i) {
                    on_device(device, [&] {
                        for (const Handover &handover : handovers_[*stage])
                            hand_over(handover, device, parts[i].tokens.size());
                        devices_[device]->wait_for_copies();
                    });
                },
                [&](size_t i) { return on_device(device, [&] { return run_part(device, i); }); });
        });
        return order.finished();
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
    const int32_t pipelined_tokens_;
    bool pipelines_ = false;
    std::vector<std::optional<size_t>> stage_of_;  // by device
    std::optional<RankThreads> threads_;
};

}  // namespace

std::unique_ptr<Backend> make_split_backend(std::vector<std::unique_ptr<Backend>> devices, AssignSteps assign,
                                            std::vector<std::string> names, int32_t pipelined_tokens) {
    return std::make_unique<SplitBackend>(std::move(devices), std::move(assign), std::move(names),
                                          pipelined_tokens);
}

}  // namespace runnel::kernels
