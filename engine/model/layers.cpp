#include "engine/model/layers.h"

#include <algorithm>

#include "kernels/steps.h"

namespace runnel::model {

Layers layers_of(const kernels::Program &program) {
    Layers layers;
    for (const kernels::Step &step : program.steps)
        layers.count = std::max(layers.count, kernels::layer_of(step) + 1);
    bool begun = false;
    for (const kernels::Step &step : program.steps) {
        const int32_t layer = kernels::layer_of(step);
        begun = begun || layer >= 0;
        layers.of_step.push_back(layer < 0 && begun ? layers.count : layer);
    }
    return layers;
}

}  // namespace runnel::model
