#include "kernels/partition.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/steps.h"

namespace runnel::kernels {

void drop_unused(Program &partition, std::span<const Slot> kept) {
    std::vector<bool> slots(partition.slots.size()), weights(partition.weights.size()),
        layers(partition.cache_layers.size()), ropes(partition.ropes.size()),
        states(partition.state_layers.size());
    const auto mark = [](std::vector<bool> &used) {
        return [&used](int32_t id) {
            if (id >= 0) used[static_cast<size_t>(id)] = true;
        };
    };
    for (const Slot slot : kept) mark(slots)(slot);
    for (const Step &step : partition.steps) {
        visit_slots(step, mark(slots), mark(slots));
        visit_weights(step, mark(weights));
        visit_caches(step, [&](const CacheUse &use) { mark(layers)(use.cache); });
        visit_ropes(step, mark(ropes));
        visit_states(step, mark(states));
    }
    for (size_t i = 0; i < slots.size(); ++i)
        if (!slots[i]) partition.slots[i].width = 0;
    for (size_t i = 0; i < weights.size(); ++i)
        if (!weights[i]) partition.weights[i].rows = partition.weights[i].cols = 0;
    for (size_t i = 0; i < layers.size(); ++i)
        if (!layers[i]) partition.cache_layers[i].kv_heads = 0;
    for (size_t i = 0; i < states.size(); ++i)
        if (!states[i]) partition.state_layers[i].floats = 0;
    for (size_t i = 0; i < ropes.size(); ++i)
        if (!ropes[i]) partition.ropes[i].inv_freq.clear();
}

void insert_once(std::vector<Slot> &slots, Slot slot) {
    if (std::ranges::find(slots, slot) == slots.end()) slots.push_back(slot);
}

DeviceInfo joined_info(std::span<const std::unique_ptr<Backend>> devices) {
    DeviceInfo all;
    std::vector<std::pair<std::string, int>> names;  // and how many devices in a row have it
    for (const auto &device : devices) {
        const DeviceInfo info = device->info();
        if (names.empty() || names.back().first != info.name) names.emplace_back(info.name, 0);
        ++names.back().second;
        all.kind += (all.kind.empty() ? "" : "+") + info.kind;
        all.memory_total += info.memory_total;
        all.memory_free += info.memory_free;
    }
    for (const auto &[name, count] : names)
        all.name +=
            (all.name.empty() ? "" : " and ") + (count > 1 ? std::to_string(count) + " x " : "") + name;
    return all;
}

}  // namespace runnel::kernels
