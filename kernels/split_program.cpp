#include "kernels/split_program.h"

#include <algorithm>
#include <cassert>
#include <optional>

#include "kernels/partition.h"
#include "kernels/steps.h"

namespace runnel::kernels {
namespace {

// Moves every Attention to the device of the first Attention with the same cache layer.
std::vector<uint8_t> with_shared_cache(const Program &program, std::span<const uint8_t> device) {
    std::vector<uint8_t> where(device.begin(), device.end());
    std::vector<int> owner(program.cache_layers.size(), -1);
    for (size_t i = 0; i < program.steps.size(); ++i)
        visit_caches(program.steps[i], [&](const CacheUse &use) {
            int &device_of_layer = owner[static_cast<size_t>(use.cache)];
            if (device_of_layer < 0) device_of_layer = where[i];
            where[i] = static_cast<uint8_t>(device_of_layer);
        });
    return where;
}

// Distributes the steps in order and records which slots cross devices.
class Splitter {
  public:
    Splitter(const Program &program, size_t devices) : states_(program.slots.size()) {
        for (State &state : states_) state.valid.resize(devices);
        split_.programs.assign(devices, program);
        for (Program &partition : split_.programs) {
            partition.steps.clear();
            partition.parts.clear();
        }
    }

    void add(const Step &step, size_t device) {
        const bool begins = split_.part_ends.empty() ? split_.stages.empty()
                                                     : split_.stages.size() == split_.part_ends.back();
        if (begins || split_.stages.back().device != device) begin_part(device);
        Program &partition = split_.programs[device];
        const auto reads = [&](Slot slot) { need(slot, device); };
        const auto writes = [&](Slot slot) {
            State &state = states_[static_cast<size_t>(slot)];
            state.valid.assign(state.valid.size(), false);
            state.valid[device] = true;
            state.writer = split_.stages.size() - 1;
            state.given = false;
        };
        visit_slots(step, reads, writes);
        partition.steps.push_back(step);
        partition.parts.back().end = partition.steps.size();
    }

    // Begins a part of the whole program, to which others give these slots.
    void begin_outer_part(std::span<const Slot> in) {
        for (const Slot slot : in) {
            State &state = states_[static_cast<size_t>(slot)];
            state.valid.assign(state.valid.size(), false);
            state.writer.reset();
            state.given = true;
        }
    }
    // Ends it.
    void end_outer_part(std::span<const Slot> out) {
        split_.part_ends.push_back(split_.stages.size());
        for (const Slot slot : out) {
            const auto writer = states_[static_cast<size_t>(slot)].writer;
            if (!writer) {  // it stays as it was given, on the device that reads it
                assert(split_.outside.contains(slot));
                continue;
            }
            const SplitProgram::Stage &from = split_.stages[*writer];
            insert_once(split_.programs[from.device].parts[static_cast<size_t>(from.part)].out, slot);
            split_.outside[slot] = from.device;
        }
    }

    SplitProgram finish() {
        for (Program &partition : split_.programs) drop_unused(partition);
        return std::move(split_);
    }

  private:
    struct State {
        std::vector<bool> valid;       // per device: whether its copy of the slot is current
        std::optional<size_t> writer;  // the last stage that wrote it
        bool given = false;            // it is written from outside, before the part
    };

    void begin_part(size_t device) {
        Program &partition = split_.programs[device];
        split_.stages.push_back({device, static_cast<int32_t>(partition.parts.size()), {}});
        partition.parts.push_back({partition.steps.size(), {}, {}});
    }

    void need(Slot slot, size_t device) {
        State &state = states_[static_cast<size_t>(slot)];
        if (state.valid[device]) return;
        if (state.given) {
            [[maybe_unused]] const size_t reader = split_.outside.try_emplace(slot, device).first->second;
            assert(reader == device);
            split_.programs[device].parts.back().in.push_back(slot);
            split_.stages.back().from.push_back(device);
            state.valid[device] = true;
            return;
        }
        if (!state.writer) return;
        const SplitProgram::Stage &from = split_.stages[*state.writer];
        insert_once(split_.programs[from.device].parts[static_cast<size_t>(from.part)].out, slot);
        split_.programs[device].parts.back().in.push_back(slot);
        split_.stages.back().from.push_back(from.device);
        state.valid[device] = true;
    }

    std::vector<State> states_;  // per slot
    SplitProgram split_;
};

}  // namespace

SplitProgram split_program(const Program &program, std::span<const uint8_t> device, size_t devices) {
    assert(device.size() == program.steps.size());
    const std::vector<uint8_t> where = with_shared_cache(program, device);
    Splitter splitter(program, devices);
    size_t i = 0;
    for (const Program::Part &part : program.whole_parts()) {
        splitter.begin_outer_part(part.in);
        for (; i < part.end; ++i) splitter.add(program.steps[i], where[i]);
        splitter.end_outer_part(part.out);
    }
    return splitter.finish();
}

}  // namespace runnel::kernels
