#include "engine/model/layers.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "kernels/steps.h"

namespace runnel::model {
namespace {

// -1: none that is known.
int32_t named_layer(const kernels::Program &program, const kernels::Step &step) {
    constexpr std::string_view kPrefix = "blk.";
    int32_t layer = -1;
    kernels::visit_weights(step, [&](kernels::WeightId id) {
        if (id == kernels::kNoWeight || layer >= 0) return;
        const std::string_view name = program.weights[static_cast<size_t>(id)].name;
        if (name.starts_with(kPrefix))
            std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), layer);
    });
    return layer;
}

}  // namespace

Layers layers_of(const kernels::Program &program) {
    Layers layers;
    int32_t current = -1;
    size_t end = 0;  // of the last layer
    for (size_t i = 0; i < program.steps.size(); ++i) {
        const int32_t named = named_layer(program, program.steps[i]);
        if (named >= 0) {
            current = named;
            end = i + 1;
        }
        layers.count = std::max(layers.count, current + 1);
        layers.of_step.push_back(current);
    }
    std::fill(layers.of_step.begin() + static_cast<std::ptrdiff_t>(end), layers.of_step.end(), layers.count);
    return layers;
}

}  // namespace runnel::model
