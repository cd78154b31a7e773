#include "engine/model/window.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

namespace runnel::model {

void impose_window(kernels::Program &program, int32_t window, int32_t sinks) {
    std::vector<std::pair<int32_t, int32_t>> groups;  // window and sinks of each
    for (kernels::Step &step : program.steps) {
        auto *attention = std::get_if<kernels::Attention>(&step);
        if (!attention) continue;
        if (attention->window == 0 ||
            (attention->window > window && attention->window_kind == kernels::Attention::Window::Sliding)) {
            attention->window = window;
            attention->sink_cells = sinks;
        }
        if (attention->k == kernels::kNoSlot) continue;  // in the group of the layer whose keys it reads
        const std::pair reach{attention->window, attention->sink_cells};
        const auto known = std::find(groups.begin(), groups.end(), reach);
        program.cache_layers[static_cast<size_t>(attention->layer)].group =
            static_cast<int32_t>(known - groups.begin());
        if (known == groups.end()) groups.push_back(reach);
    }
}

}  // namespace runnel::model
