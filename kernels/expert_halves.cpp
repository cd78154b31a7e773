#include "kernels/expert_halves.h"

#include <map>
#include <numeric>
#include <utility>

#include "kernels/steps.h"

namespace runnel::kernels {

int64_t hidden_rows_unit(const Experts &step) {
    constexpr int64_t kTileRows = 16, kTiles = Experts::kHiddenUnit / kTileRows;
    return kTileRows * kTiles / std::gcd<int64_t>(step.routing.used, kTiles);
}

Program with_expert_halves(const Program &program) {
    Program halves = program;
    halves.steps.clear();
    std::map<int64_t, Slot> hidden;  // by width
    std::vector<size_t> ends;        // of the steps of `program`, in halves.steps
    for (const Step &step : program.steps) {
        const auto *whole = std::get_if<Experts>(&step);
        const bool is_whole = whole != nullptr && whole->gate != kNoWeight && whole->down != kNoWeight;
        if (!is_whole || expert_width(program, *whole) % hidden_rows_unit(*whole) != 0) {
            halves.steps.push_back(step);
        } else {
            const int64_t width = whole->routing.used * expert_width(program, *whole);
            const auto [slot, is_new] = hidden.try_emplace(width, static_cast<Slot>(halves.slots.size()));
            if (is_new) halves.slots.push_back({"experts", width});
            Experts first = *whole, second = *whole;
            first.out = second.in = slot->second;
            first.down = first.down_bias = kNoWeight;
            first.add = kNoSlot;
            for (WeightId *id : {&second.gate, &second.up, &second.gate_bias, &second.up_bias,
                                 &second.gate_scales, &second.up_scales})
                *id = kNoWeight;
            halves.steps.push_back(first);
            halves.steps.push_back(second);
        }
        ends.push_back(halves.steps.size());
    }
    for (Program::Part &part : halves.parts) part.end = part.end == 0 ? 0 : ends[part.end - 1];
    return halves;
}

}  // namespace runnel::kernels
