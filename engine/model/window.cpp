#include "engine/model/window.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/model/model.h"
#include "kernels/steps.h"

namespace runnel::model {

using namespace kernels;

static void narrow(Indexer &step, int32_t, int32_t) {
    throw ModelError("--window does not work with sparse attention: choose a context of at most " +
                     std::to_string(step.all_cells()) + " tokens (-c), which needs no indexer");
}
static void narrow(SoftPool &, int32_t, int32_t) {
    throw ModelError("--window does not work with keys that stand for blocks of tokens: omit it");
}
static void narrow(Attention &step, int32_t window, int32_t sinks) {
    if (step.window != 0 && (step.window <= window || step.window_kind != Attention::Window::Sliding)) return;
    step.window = window;
    step.sink_cells = sinks;
}
// Steps without a cache: unchanged.
static void narrow(Embed &, int32_t, int32_t) {}
static void narrow(HashedEmbed &, int32_t, int32_t) {}
static void narrow(Norm &, int32_t, int32_t) {}
static void narrow(Linear &, int32_t, int32_t) {}
static void narrow(HeadLinear &, int32_t, int32_t) {}
static void narrow(Copy &, int32_t, int32_t) {}
static void narrow(Rotate &, int32_t, int32_t) {}
static void narrow(Mix &, int32_t, int32_t) {}
static void narrow(StreamWeights &, int32_t, int32_t) {}
static void narrow(Lerp &, int32_t, int32_t) {}
static void narrow(Rope &, int32_t, int32_t) {}
static void narrow(JoinAttention &, int32_t, int32_t) {}
static void narrow(Activation &, int32_t, int32_t) {}
static void narrow(Experts &, int32_t, int32_t) {}
static void narrow(ShortConv &, int32_t, int32_t) {}
static void narrow(ScanGate &, int32_t, int32_t) {}
static void narrow(LinearScan &, int32_t, int32_t) {}
static void narrow(SelectiveScan &, int32_t, int32_t) {}
static void narrow(Logits &, int32_t, int32_t) {}

void impose_window(kernels::Program &program, int32_t window, int32_t sinks) {
    std::vector<std::pair<int32_t, int32_t>> groups;  // window and sinks per group
    const auto regroup = [&](const CacheUse &use) {
        if (!use.appends) return;  // stays in the group of the layer whose keys it reads
        const std::pair reach{use.window, use.sink_cells};
        const auto known = std::find(groups.begin(), groups.end(), reach);
        program.cache_layers[static_cast<size_t>(use.cache)].group =
            static_cast<int32_t>(known - groups.begin());
        if (known == groups.end()) groups.push_back(reach);
    };
    for (Step &step : program.steps) {
        std::visit([&](auto &s) { narrow(s, window, sinks); }, step);
        visit_caches(step, regroup);
    }
}

}  // namespace runnel::model
