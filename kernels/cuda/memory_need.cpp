#include "kernels/cuda/memory_need.h"

#include <algorithm>

#include "kernels/cuda/activations.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/expert_runner.h"
#include "kernels/cuda/head_runner.h"
#include "kernels/cuda/kv_memory.h"
#include "kernels/cuda/logits_runner.h"
#include "kernels/cuda/weights.h"

namespace runnel::kernels::cuda {
namespace {

constexpr size_t kReserve = size_t{64} << 20;  // left to the driver: kernels, graphs, fragmentation

// The partial results of attention over split keys, of the layer of wide heads that can have the most, and
// half as much again, by which their memory grows. (Of narrow heads, the reserve has room for them.)
size_t partial_bytes(const Program &program) {
    int64_t floats = 0;
    for (const Step &step : program.steps) {
        const auto *a = std::get_if<Attention>(&step);
        if (a == nullptr) continue;
        const bool latent = program.cache_layers[static_cast<size_t>(a->layer)].head_dim_v == 0;
        if (is_wide(latent, a->head_dim_k, a->head_dim_v))
            floats =
                std::max(floats, attention_partial_floats(wide_room(a->heads, a->kv_heads), a->head_dim_v));
    }
    return static_cast<size_t>(floats + floats / 2) * sizeof(float);
}

}  // namespace

size_t slot_bytes(const Program &program, int32_t max_tokens) {
    int64_t floats = 0;
    for (const SlotInfo &slot : program.slots) floats += stride_of(slot.width) * max_tokens;
    return static_cast<size_t>(floats) * sizeof(float);
}

MemoryNeed memory_need(const Program &program, const Plan &plan, const CacheConfig &cache,
                       int32_t max_tokens) {
    MemoryNeed need;
    need.weights = weight_memory(program, plan);
    need.cache = KvMemory::bytes(program, cache);
    need.work = slot_bytes(program, max_tokens) + ExpertRunner::bytes(program, plan, max_tokens) +
                HeadRunner::bytes(program, plan, max_tokens) +
                static_cast<size_t>(activation_bytes(plan.widest, max_tokens)) +
                (plan.logits ? LogitsRunner::bytes(program, *plan.logits) : 0) + kReserve;
    need.work += partial_bytes(program);
    return need;
}

MemoryNeed memory_need(const Program &program, const CacheConfig &cache, int32_t max_tokens) {
    return memory_need(program, plan(program), cache, max_tokens);
}

}  // namespace runnel::kernels::cuda
