// Attention weights of one layer: how much each token of a text attends to each token before it.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "kernels/device.h"
#include "kernels/program.h"

namespace runnel::kernels {

struct AttentionMap {
    int32_t layer = 0, heads = 0;
    int32_t window = 0, sink_cells = 0;  // of the layer; window 0: all earlier tokens
    size_t tokens = 0;
    std::vector<double> weights;  // [heads][tokens][tokens], a row per query; 0 where a token is not visible

    // A row sums to 1, or to less if the head has a learned sink, which takes the rest.
    double weight(size_t head, size_t query, size_t key) const {
        return weights[(head * tokens + query) * tokens + key];
    }
};

struct AttentionLayer {
    int32_t layer, heads;
};
// The layers with attention over cached keys, in order, except those with keys of several kinds (JoinAttention).
std::vector<AttentionLayer> attention_layers(const Program &program);

// Runs the program up to the layer's attention on a device that can exchange slots (the CPU), and computes the weights
// in double precision from the queries and keys there; the keys are not rounded to the cache's type. nullopt when
// *cancel became true. Throws std::invalid_argument if the layer is not one of attention_layers(), and BackendError.
// Precondition: `tokens` is not empty; the weights take 8 * heads * tokens^2 bytes.
std::optional<AttentionMap> attention_map(const Program &program, int32_t layer, const Device &device,
                                          std::span<const int32_t> tokens,
                                          const std::atomic<bool> *cancel = nullptr);

}  // namespace runnel::kernels
