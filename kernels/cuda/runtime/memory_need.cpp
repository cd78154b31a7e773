#include "kernels/cuda/runtime/memory_need.h"

#include <algorithm>

#include "gguf/base/bytes.h"
#include "kernels/cpu/system_memory.h"
#include "kernels/cuda/attention/attention_memory.h"
#include "kernels/cuda/attention/divided_attention.h"
#include "kernels/cuda/attention/kv_memory.h"
#include "kernels/cuda/experts/expert_runner.h"
#include "kernels/cuda/indexer/indexer_runner.h"
#include "kernels/cuda/linear/activations.h"
#include "kernels/cuda/linear/head_runner.h"
#include "kernels/cuda/runtime/batch_input.h"
#include "kernels/cuda/scan/scan_runner.h"
#include "kernels/cuda/select/logits_runner.h"
#include "kernels/cuda/upload/weights.h"

namespace runnel::kernels::cuda {

size_t rope_bytes(const Program &program) {
    size_t turns = 1;
    for (const RopeTable &rope : program.ropes) turns += rope.inv_freq.size();
    return turns * sizeof(uint64_t);
}

size_t slot_bytes(const Program &program, int32_t max_tokens) {
    int64_t floats = 0;
    for (const SlotInfo &slot : program.slots) floats += stride_of(slot.width) * max_tokens;
    return static_cast<size_t>(floats) * sizeof(float);
}

MemoryNeed memory_need(const Program &program, const Plan &plan, const CacheConfig &cache,
                       int32_t max_tokens) {
    if (!program.cache_layers.empty() && (cache.k == CacheType::F32 || cache.v == CacheType::F32))
        throw BackendError(
            BackendError::Kind::NoKernel,
            "the GPU has no kernel for keys or values in f32, which it would round to f16: choose "
            "f16, bf16, q8_0, fp8, q5_1, q5_0, q4_1, q4_0 or iq4_nl with --cache-type-k and "
            "--cache-type-v, or --device cpu");
    MemoryNeed need;
    need.weights = weight_memory(program, plan);
    need.host = host_weight_memory(program, plan);
    need.cache = cache_memory(program, cache, max_tokens);
    need.work = slot_bytes(program, max_tokens) + ExpertRunner::bytes(program, plan, max_tokens) +
                HeadRunner::bytes(program, plan, max_tokens) + ScanRunner::bytes(program, max_tokens) +
                static_cast<size_t>(activation_bytes(plan.widest, max_tokens, plan.forms) +
                                    activation_bytes(plan.widest, kLinearTokens, plan.forms)) +
                static_cast<size_t>(arrival_counters(plan)) * sizeof(uint32_t) +
                (plan.logits ? LogitsRunner::bytes(program, *plan.logits) : 0) +
                static_cast<size_t>(attention_totals(program, max_tokens)) * sizeof(float) +
                static_cast<size_t>(attention_counters(program, max_tokens)) * sizeof(uint32_t) +
                BatchInput::bytes(program, max_tokens) + rope_bytes(program) + kDriverReserve;
    return need;
}

void expect_memory(const MemoryNeed &need, size_t free) {
    if (need.all() > free)
        throw BackendError(BackendError::Kind::OutOfMemory,
                           "the GPU has " + base::mebibytes(free) + " free, but " +
                               base::mebibytes(need.all()) + " are needed (" + base::mebibytes(need.weights) +
                               " of weights, " + base::mebibytes(need.cache) + " of cache, " +
                               base::mebibytes(need.work) +
                               " of work memory): choose a smaller context with -c, or --device cpu");
    if (need.host == 0) return;
    const size_t host = cpu::system_memory().available;
    if (host > 0 && need.host + kHostReserve > host)
        throw BackendError(BackendError::Kind::OutOfMemory,
                           "the experts of all layers take " + base::mebibytes(need.host) +
                               " of host memory, but " + base::mebibytes(host) +
                               " are free: choose --cpu-moe, which reads them from the file");
}

size_t cache_memory(const Program &program, const CacheConfig &cache, int32_t max_tokens) {
    const size_t states = ScanRunner::state_memory(program, cache);
    if (cache.blocks.empty()) return states;
    return states + KvMemory::bytes(program, cache) + BatchInput::table_bytes(cache, max_tokens) +
           IndexerRunner::bytes(program, cache) + DividedAttention::bytes(program, cache, max_tokens) +
           static_cast<size_t>(attention_partials(program, cache, max_tokens)) * sizeof(float);
}

MemoryNeed memory_need(const Program &program, const CacheConfig &cache, int32_t max_tokens) {
    return memory_need(program, plan(program), cache, max_tokens);
}

}  // namespace runnel::kernels::cuda
