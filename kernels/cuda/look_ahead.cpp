#include "kernels/cuda/look_ahead.h"

#include <algorithm>

namespace runnel::kernels::cuda {

LinearParams::Ahead LookAhead::first_of(size_t from, size_t end, bool logits) const {
    for (size_t i = from; i < end; ++i) {
        const Op &op = plan_.ops[i];
        const auto *linear = std::get_if<LinearOp>(&op);
        if (const auto *experts = std::get_if<ExpertsOp>(&op)) {
            if (!experts->router) return {};
            linear = &*experts->router;
        }
        if (std::holds_alternative<HeadLinear>(op)) return {};
        if (linear == nullptr) continue;
        std::vector<WeightId> ids;
        for (const Linear::Part &part : linear->parts) ids.push_back(part.weight);
        return of_matrices(ids, linear->gate != LinearGate::None);
    }
    if (!logits) return {};
    const WeightId last[] = {plan_.logits->weight};
    return of_matrices(last, false);
}

// The blocks of a launch begin with the first tiles of its matrices; with a gate, with those of both.
LinearParams::Ahead LookAhead::of_matrices(std::span<const WeightId> ids, bool gated) const {
    constexpr int64_t kShare = 4, kUnit = 16;
    int64_t left = static_cast<int64_t>(device_.l2_bytes) / kShare;
    LinearParams::Ahead ahead;
    for (size_t i = 0; i < std::min(std::size(ahead.part), ids.size()); ++i) {
        const Weight &w = program_.weights[static_cast<size_t>(ids[i])];
        const int64_t most = gated && i == 0 ? left / 2 : left,
                      bytes =
                          std::min(tiled_bytes(tile_format(w.type), w.rows, w.cols), most) / kUnit * kUnit;
        ahead.part[i] = {weights_.tiles(ids[i]), bytes};
        left -= bytes;
    }
    return ahead;
}

}  // namespace runnel::kernels::cuda
