#include "kernels/cuda/memory_need.h"

#include "kernels/cuda/activations.h"
#include "kernels/cuda/expert_runner.h"
#include "kernels/cuda/kv_memory.h"
#include "kernels/cuda/logits_runner.h"
#include "kernels/cuda/weights.h"

namespace runnel::kernels::cuda {
namespace {

constexpr size_t kReserve = size_t{64} << 20;  // left to the driver: kernels, graphs, fragmentation

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
                static_cast<size_t>(activation_bytes(plan.widest, max_tokens)) +
                (plan.logits ? LogitsRunner::bytes(program, *plan.logits) : 0) + kReserve;
    return need;
}

MemoryNeed memory_need(const Program &program, const CacheConfig &cache, int32_t max_tokens) {
    return memory_need(program, plan(program), cache, max_tokens);
}

}  // namespace runnel::kernels::cuda
