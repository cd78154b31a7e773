#include "kernels/cuda/attention/attention_memory.h"

#include <algorithm>
#include <bit>
#include <cassert>

#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/runtime/memory_need.h"
#include "kernels/steps.h"

namespace runnel::kernels::cuda {
namespace {

// Enough for about 2,000 items at 128 dimensions: several for every block that a device runs at a time.
constexpr int64_t kFillingFloats = int64_t{16} << 18;

int64_t tiles_of(const Attention &a, int64_t tokens) {
    return divide_up(tokens * (a.heads / a.kv_heads), kAttentionRows);
}

// Upper bound on the splits visible to `tokens` tokens of a sequence of `cells` cells.
int64_t most_splits(const Attention &a, int64_t cells, int64_t tokens) {
    const int64_t sinks = divide_up(a.sink_cells, kAttentionSplit), all = divide_up(cells, kAttentionSplit);
    if (a.window == 0) return sinks + all;
    return sinks + std::min(all, (int64_t{a.window} + tokens) / kAttentionSplit + 2);
}

// The longest sequence that layers of this group can have.
int64_t most_cells(const CacheConfig &cache, const Attention &a, int64_t blocks) {
    if (cache.context > 0) return cache.context;
    return a.window > 0 ? INT32_MAX : blocks * kBlockTokens;  // windows return blocks to the pool
}

int64_t item_floats(const Attention &a) {
    return attention_partial_floats(1, a.head_dim_v);
}

}  // namespace

bool is_latent(const Program &program, const Attention &a) {
    return program.cache_layers[static_cast<size_t>(a.cache)].head_dim_v == 0;
}

bool is_divided(const Program &program, const Attention &a) {
    return program.cache_layers[static_cast<size_t>(a.cache)].divided;
}

bool is_wide(const Program &program, const Attention &a) {
    return a.chosen != kNoSlot || is_wide(is_latent(program, a), a.head_dim_k, a.head_dim_v);
}

// One counter per tile. Up to kLinearTokens tokens, of one or of many sequences, have at most one tile per token
// and head. In larger batches a token and K/V head has at most kDecodeRows / kAttentionRows tiles.
int64_t attention_counters(const Program &program, int32_t max_tokens) {
    int64_t counters = 1;
    for_each_step<Attention>(program, [&](const Attention &a) {
        if (!a.attends()) return;
        if (is_wide(program, a))
            counters = std::max(counters, int64_t{wide_room(a.heads, a.kv_heads)});
        else
            counters = std::max({counters, int64_t{kLinearTokens} * a.heads,
                                 int64_t{max_tokens} * a.kv_heads * (kDecodeRows / kAttentionRows)});
    });
    return counters;
}

int64_t attention_totals(const Program &program, int32_t max_tokens) {
    int64_t totals = 0;
    for_each_step<Attention>(program, [&](const Attention &a) {
        if (!a.attends()) return;
        const int64_t blocks = prefill_blocks(a.heads, a.kv_heads, max_tokens);
        totals = std::max(totals, is_wide(program, a)
                                      ? kMostAttentionBlocks * kWideTotals
                                      : attention_prefill_totals(a.head_dim_k, a.head_dim_v, blocks, true));
    });
    return totals;
}

int64_t attention_partials(const Program &program, const CacheConfig &cache, int32_t max_tokens) {
    int64_t floats = 0;
    for_each_step<Attention>(program, [&](const Attention &a) {
        if (!a.attends() || is_divided(program, a)) return;
        if (is_wide(program, a)) {
            floats = std::max(floats, wide_room(a.heads, a.kv_heads) * item_floats(a));
            return;
        }
        const auto group = static_cast<size_t>(program.cache_layers[static_cast<size_t>(a.cache)].group);
        const int64_t blocks = cache.blocks[group], tiles = tiles_of(a, 1) * a.kv_heads;
        const int64_t splits = most_splits(a, most_cells(cache, a, blocks), max_tokens);
        const int64_t pool = tiles * (blocks * kBlockTokens / kAttentionSplit + 1);
        const int64_t filling = kFillingFloats / item_floats(a);
        const int64_t items = std::min(std::max(pool, filling), tiles * max_tokens * splits);
        floats = std::max(floats, std::max(items, splits) * item_floats(a));
    });
    return floats;
}

AttentionLaunches attention_launches(const Program &program, std::span<const SequenceSpan> sequences,
                                     int32_t tokens, int64_t partials) {
    AttentionLaunches launches;
    int64_t most_units = 1;
    for_each_step<Attention>(program, [&](const Attention &a) {
        if (!a.attends() || is_divided(program, a)) return;
        if (is_wide(program, a)) return;  // items that do not fit in `partial` run in order (wide_work())
        int64_t items = 0, units = 0, longest = 1;
        AttentionParams p{};
        p.window = a.window, p.chunked = a.window_kind == Attention::Window::Chunked;
        p.sink_cells = a.sink_cells;
        for (const SequenceSpan &s : sequences) {
            const int64_t rows = int64_t{s.count} * (a.heads / a.kv_heads);
            if (tokens > kLinearTokens && rows > kDecodeRows) continue;
            const Splits parts = splits_of(p, {s.first, s.count, s.past});
            const int64_t splits = parts.sinks + parts.others, mine = tiles_of(a, s.count) * a.kv_heads;
            items += mine * splits;
            units += mine;
            longest = std::max(longest, splits);
        }
        most_units = std::max(most_units, units);
        const int64_t room = partials / item_floats(a);
        assert(longest <= room);
        if (items > room)
            launches.units = std::min(
                launches.units, static_cast<int32_t>(std::bit_floor(static_cast<uint64_t>(room / longest))));
    });
    launches.count = static_cast<int32_t>(divide_up(most_units, launches.units));
    return launches;
}

}  // namespace runnel::kernels::cuda
