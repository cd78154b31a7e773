#include "engine/model/first_layers.h"

#include <algorithm>
#include <string>

#include "engine/model/layers.h"
#include "engine/model/model.h"
#include "kernels/steps.h"

namespace runnel::model {
namespace {

using namespace kernels;

// Removes what the steps do not use: it would take memory in the cache or on the device.
void drop_unused(Program &program) {
    size_t cached = 0;
    for (const Step &step : program.steps)
        visit_caches(step, [&](const CacheUse &use) {
            cached = std::max(cached, static_cast<size_t>(use.cache) + 1);
        });
    program.cache_layers.resize(cached);
    std::vector<bool> used(program.state_layers.size());
    for (const Step &step : program.steps)
        visit_states(step, [&](int32_t state) { used[static_cast<size_t>(state)] = true; });
    for (size_t i = 0; i < used.size(); ++i)
        if (!used[i]) program.state_layers[i].floats = 0;
}

}  // namespace

Program first_layers(const Program &program, int32_t layers) {
    const Layers all = layers_of(program);
    if (layers < 1 || all.count <= layers)
        throw ModelError("the model has " + std::to_string(all.count) +
                         " layers: the draft can use the first 1 to " + std::to_string(all.count - 1));
    size_t begin = program.steps.size(), end = 0;  // range of the steps to remove
    for (size_t i = 0; i < program.steps.size(); ++i) {
        const int32_t layer = all.of_step[i];
        if (layer >= layers) begin = std::min(begin, i);
        if (layer < all.count) end = i + 1;
    }
    Program cut = program;
    cut.resident_experts = 0;  // few layers: all of their experts
    const auto at = [&](size_t index) { return cut.steps.begin() + static_cast<std::ptrdiff_t>(index); };
    cut.steps.erase(at(begin), at(end));
    drop_unused(cut);
    return cut;
}

}  // namespace runnel::model
