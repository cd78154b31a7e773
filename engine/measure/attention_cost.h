// What attention costs on the CPU by depth: full and windowed, fused (what runnel does) and unfused (a matrix of all
// scores written to memory and read back), with as many K/V heads as query heads (MHA), fewer (GQA) and one (MQA).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/decode/cache_plan.h"
#include "engine/decode/stop_request.h"
#include "kernels/program.h"

namespace runnel::measure {

// One layer's attention.
struct AttentionShape {
    int32_t heads = 0, kv_heads = 0, head_dim_k = 0, head_dim_v = 0;
    bool latent = false;  // the values are the first head_dim_v values of the one key (MLA)
    float scale = 1;
    decode::CacheTypes types = {};
};

// `tokens` tokens after `depth` others, in one layer. They are in the cache already.
struct AttentionPass {
    AttentionShape shape;
    int64_t depth = 0, tokens = 1;
    int32_t window = 0;  // 0: all earlier cells
    bool fused = true;

    // Counted. A score is a query with a key; a multiply-add is two operations.
    double scores() const;
    double operations() const;
    // The minimum of bytes moved: each K/V cell in sight read once,
    double cache_bytes() const;
    double row_bytes() const;     // queries read and results written, as float32,
    double matrix_bytes() const;  // and unfused, every score written, read, written and read again.
    double bytes() const { return cache_bytes() + row_bytes() + matrix_bytes(); }
};

struct AttentionTime {
    AttentionPass pass;
    std::string heads;   // "MHA", "GQA", "MQA" or "latent"
    bool own = false;    // the model's number of K/V heads
    double seconds = 0;  // of one layer; the shortest time
    double per_token() const { return seconds / static_cast<double>(pass.tokens); }
};

struct AttentionCosts {
    AttentionShape shape;  // the model's: of most of its layers
    int32_t layers = 0;    // with attention
    int32_t window = 0;
    bool own_window = false;  // some layers of the model have that window
    int32_t chunk = 0;        // tokens of the prefill passes
    std::vector<AttentionTime> times;
    // The largest difference between a fused and an unfused result, divided by the largest result.
    double largest_difference = 0;

    // Null if it was not measured.
    const AttentionTime *find(int64_t depth, int64_t tokens, int32_t kv_heads, int32_t windowed_to,
                              bool fused) const;
};

struct AttentionCostOptions {
    std::vector<int64_t> depths;  // ascending, at least one, each > 0
    int32_t window = 0;           // 0: the model's own, or 512
    int32_t chunk = 128;          // tokens of the prefill passes
    int repetitions = 5;          // fewer of a pass that takes long, more of a short one
    int threads = 1;
    decode::CacheTypes types = {};
    std::function<void(const std::string &)> show = {};  // called with the test that begins
};

// The shapes that are compared, the model's own among them: MHA, GQA (the model's, or a fourth of the heads) and
// MQA; a latent cache is only compared with itself.
struct NamedShape {
    std::string name;
    AttentionShape shape;
};
std::vector<NamedShape> compared_shapes(const AttentionShape &own);

// Measures with random queries, keys and values, and the kernels that the CPU backend uses. The layers of a pass have
// different keys and values, as many as the model has if they fit into 256 MiB, so that a short context is no longer
// in the CPU's caches than it would be between two tokens of the model. Throws std::invalid_argument if no layer of
// the program has attention, BackendError{OutOfMemory} and base::Interrupted.
AttentionCosts measure_attention(const kernels::Program &program, const AttentionCostOptions &options,
                                 const decode::StopRequest &stop);

}  // namespace runnel::measure
