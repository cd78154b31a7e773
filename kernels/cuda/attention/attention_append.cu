// Writes k and v of the batch's tokens into the K/V cache, before prefill attention or for cells that
// sequences share: norm, RoPE, rotation, rounding (attention.h). Also rotates attention outputs back, and heads outside attention.
//
// One warp per head, on a persistent grid. Bytes per (token, K/V head) of the append: 4 (dim_k + dim_v) read
// (latent layers: 4 dim_k), and the cache's size written. Bytes per (token, head) of the rotation: 8 dim.
#include <cmath>

#include "kernels/cuda/attention/attention_head.h"

namespace runnel::kernels::cuda {

namespace {

constexpr int kWarps = 4;

struct AppendShared {
    float scratch[kWarps][kMaxWideK];
};
static_assert(sizeof(AppendShared) == kAppendShared);

struct AttentionAppend {
    using Params = AttentionParams;
    static constexpr const char *kName = "attention append";
    static constexpr int kThreads = 32 * kWarps, kBlocks = 8;

    // Tokens that go to adjacent cells.
    struct Cells {
        int token, cell, count;
    };
    static DEVICE Cells cells_of(const Params &p, const SequenceInfo &s) {
        if (p.shared != 0) return {s.shared_from, s.past - s.shared, s.shared};
        const int rows = s.count * (p.heads / p.kv_heads);
        return {s.first, s.past, rows > p.min_rows && rows <= p.max_rows ? s.count : 0};
    }

    static DEVICE void append(const Params &p, int token, int cell, int sequence, int kv_head,
                              float *scratch) {
        const int32_t *table = p.tables + sequence * p.table_stride;
        if (const int32_t block = table[cell / kPageCells]; block < p.first_block || block >= p.end_block)
            return;
#pragma unroll 1
        for (int i = 0; i < (p.latent ? 1 : 2); ++i) {
            const CachePages &pages = i == 0 ? p.k_cache : p.v_cache;
            const float *from = i == 0 ? p.k + token * p.k_stride : p.v + token * p.v_stride;
            make_head(i == 0 ? key_recipe(p, token) : value_recipe(p), from + int64_t{kv_head} * pages.dims,
                      scratch);
            store_head<true>(pages, page_of(pages, p.kv_heads, table, kv_head, cell), cell, scratch, true,
                             [](int, uint16_t) {});
            warp_sync();
        }
    }

    static DEVICE void run(const Params &p) {
        auto &shared = shared_memory<AppendShared>();
        grid_dep_wait();
        grid_dep_trigger();
        const int warps = block_count() * kWarps;
        int index = block_index() * kWarps + warp_index();  // among the heads of the current sequence
        const int sequences = *p.sequence_count;
        for (int s = 0; s < sequences; ++s) {
            const Cells cells = cells_of(p, p.sequences[s]);
            const int heads = cells.count * p.kv_heads;
            for (; index < heads; index += warps)
                append(p, cells.token + index / p.kv_heads, cells.cell + index / p.kv_heads, s,
                       index % p.kv_heads, shared.scratch[warp_index()]);
            index -= heads;
        }
    }
};

struct RotateHeads {
    using Params = RotateHeadsParams;
    static constexpr const char *kName = "rotate heads";
    static constexpr int kThreads = 32 * kWarps, kBlocks = 8;

    static DEVICE void run(const Params &p) {
        float *scratch = shared_memory<AppendShared>().scratch[warp_index()];
        grid_dep_wait();
        grid_dep_trigger();
        const int all = p.tokens * p.heads;
        for (int i = block_index() * kWarps + warp_index(); i < all; i += block_count() * kWarps) {
            float *x = p.x + i / p.heads * p.stride + int64_t{i % p.heads} * p.dim;
            for (int d = lane_index(); d < p.dim; d += 32) scratch[d] = x[d];
            warp_sync();
            rotate_head(scratch, p.dim);
            for (int d = lane_index(); d < p.dim; d += 32) x[d] = scratch[d];
            warp_sync();
        }
    }
};

struct RopeHeads {
    using Params = RopeHeadsParams;
    static constexpr const char *kName = "rope heads";
    static constexpr int kThreads = 32 * kWarps, kBlocks = 8;

    static DEVICE void run(const Params &p) {
        grid_dep_wait();
        grid_dep_trigger();
        const int all = p.tokens * p.heads;
        for (int i = block_index() * kWarps + warp_index(); i < all; i += block_count() * kWarps) {
            const int token = i / p.heads, end = p.positions[token] + 1;
            if (end % p.block != 0) continue;
            const int position = end - p.block;
            turn_head({nullptr, p.dim, 0, false, p.rope, p.back ? -position : position, 1.0f, false},
                      p.x + token * p.stride + int64_t{i % p.heads} * p.dim);
        }
    }
};

}  // namespace

Kernel<RopeHeadsParams> rope_heads_kernel() {
    return kernel_of<RopeHeads>();
}

Kernel<AttentionParams> attention_append_kernel() {
    return kernel_of<AttentionAppend>();
}

Kernel<RotateHeadsParams> rotate_heads_kernel() {
    return kernel_of<RotateHeads>();
}

uint64_t rope_turns(double inv_freq) {
    constexpr double kTurn = 6.283185307179586476925286766559;
    const double turns = inv_freq / kTurn, fraction = turns - std::floor(turns);
    return static_cast<uint64_t>(fraction * 0x1p64);
}

}  // namespace runnel::kernels::cuda
