// k and v of the batch's tokens into the K/V cache, before prefill attention: norm, RoPE, rounding
// (attention.h).
//
// One warp per (token, K/V head), on a persistent grid. Bytes: 4 (dim_k + dim_v) read and half of that
// written per head.
#include <cmath>

#include "kernels/cuda/attention_head.h"

namespace runnel::kernels::cuda {

namespace {

constexpr int kWarps = 4;

struct AppendShared {
    float scratch[kWarps][kMaxHeadDim];
};
static_assert(sizeof(AppendShared) == kAppendShared);

template <class T>
struct AttentionAppend {
    using Params = AttentionParams;
    static constexpr const char *kName = "attention append";
    static constexpr int kThreads = 32 * kWarps, kBlocks = 8;

    static DEVICE void append(const Params &p, const SequenceInfo &s, int sequence, int index, int kv_head,
                              float *scratch) {
        const int token = s.first + index, cell = s.past + index;
        const int32_t *table = p.tables + sequence * p.table_stride;
        uint16_t *k = p.k_cache + cache_offset(p, table, kv_head, cell, p.dim_k);
        make_head(key_recipe(p, token), p.k + token * p.k_stride + int64_t{kv_head} * p.dim_k, scratch,
                  [&](int d, float value) { k[d] = T::round(value); });
        uint16_t *v = p.v_cache + cache_offset(p, table, kv_head, cell, p.dim_v);
        const float *from = p.v + token * p.v_stride + int64_t{kv_head} * p.dim_v;
        for (int d = lane_index(); d < p.dim_v; d += 32) v[d] = T::round(from[d]);
    }

    static DEVICE void run(const Params &p) {
        auto &shared = shared_memory<AppendShared>();
        grid_dep_wait();
        const int warps = block_count() * kWarps;
        int index = block_index() * kWarps + warp_index();  // among the heads of the sequence at hand
        const int sequences = *p.sequence_count, group = p.heads / p.kv_heads;
        for (int s = 0; s < sequences; ++s) {
            const SequenceInfo info = p.sequences[s];
            if (info.count * group <= p.min_rows || info.count * group > p.max_rows) continue;
            const int heads = info.count * p.kv_heads;
            for (; index < heads; index += warps)
                append(p, info, s, index / p.kv_heads, index % p.kv_heads, shared.scratch[warp_index()]);
            index -= heads;
        }
        grid_dep_trigger();
    }
};

}  // namespace

Kernel<AttentionParams> attention_append_kernel(CacheType type) {
    return type == CacheType::F16 ? kernel_of<AttentionAppend<F16>>() : kernel_of<AttentionAppend<BF16>>();
}

uint64_t rope_turns(double inv_freq) {
    constexpr double kTurn = 6.283185307179586476925286766559;
    const double turns = inv_freq / kTurn, fraction = turns - std::floor(turns);
    return static_cast<uint64_t>(fraction * 0x1p64);
}

}  // namespace runnel::kernels::cuda
