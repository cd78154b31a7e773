#include "kernels/cuda/attention/attention_runner.h"

#include "kernels/cuda/linear/linear_launch.h"
#include "kernels/cuda/runtime/memory_need.h"

namespace runnel::kernels::cuda {
namespace {

constexpr int32_t kAllRows = INT32_MAX;

struct Kernels {
    Kernel<AttentionParams> decode, prefill;
    SharedBytes decode_shared, prefill_shared;
};
Kernels kernels_of(const Attention &a, CacheType k, CacheType v) {
    return {attention_decode_kernel(k, v, a.head_dim_k, a.head_dim_v),
            attention_prefill_kernel(k, v, a.head_dim_k, a.head_dim_v),
            attention_decode_shared(k, v, a.head_dim_k, a.head_dim_v),
            attention_prefill_shared(k, v, a.head_dim_k, a.head_dim_v)};
}

void append(Launcher &launcher, int32_t tokens, const AttentionParams &p) {
    launcher.run(attention_append_kernel(), (int64_t{tokens} * p.kv_heads + 3) / 4, kAppendShared, p);
}

}  // namespace

AttentionRunner::AttentionRunner(Stream &stream, const Program &program, const CacheConfig &cache,
                                 int32_t max_tokens)
    : program_(&program) {
    const auto memory = [](int64_t words) {
        return DeviceMemory(static_cast<size_t>(words) * sizeof(float), "attention");
    };
    partial_floats_ = attention_partials(program, cache, max_tokens);
    if (partial_floats_ > 0) partials_ = memory(partial_floats_);
    const int64_t totals = attention_totals(program, max_tokens);
    if (totals > 0) totals_ = memory(totals);
    counters_ = memory(attention_counters(program, max_tokens));
    stream.fill(counters_.data(), 0, counters_.size());
    upload_ropes(stream);
}

void AttentionRunner::upload_ropes(Stream &stream) {
    std::vector<uint64_t> turns(1);
    std::vector<size_t> starts;
    for (const RopeTable &rope : program_->ropes) {
        starts.push_back(turns.size());
        for (const double frequency : rope.inv_freq) turns.push_back(rope_turns(frequency));
    }
    turns_ = DeviceMemory(rope_bytes(*program_), "rotations");
    name_region(turns_.data(), turns_.size(), "rotations", Region::Weights);
    stream.copy_to_device(turns_.data(), turns.data(), turns.size() * sizeof(uint64_t));
    stream.wait();
    for (const size_t start : starts) ropes_.push_back(turns_.as<const uint64_t>() + start);
}

void AttentionRunner::prepare(const Program &program, const Attention &step, const CacheConfig &cache) {
    cuda::prepare(attention_append_kernel().handle, kAppendShared);
    if (!step.attends()) return;
    cuda::prepare(rotate_heads_kernel().handle, kAppendShared);
    if (is_divided(program, step)) DividedAttention::prepare(program, step, cache);
    if (step.chosen != kNoSlot || step.stride > 1) {
        cuda::prepare(attention_chosen_kernel().handle, attention_chosen_shared());
        return;
    }
    if (is_wide(program, step)) {
        cuda::prepare(attention_wide_kernel().handle, attention_wide_shared());
        return;
    }
    const Kernels launches = kernels_of(step, cache.k, cache.v);
    cuda::prepare(launches.decode.handle, launches.decode_shared);
    cuda::prepare(launches.prefill.handle, launches.prefill_shared);
}

AttentionLaunches AttentionRunner::launches(std::span<const SequenceSpan> sequences, int32_t tokens) const {
    return attention_launches(*program_, sequences, tokens, partial_floats_);
}

RopeParams AttentionRunner::rope_params(int32_t id) const {
    if (id < 0) return {nullptr, 1, RopePairs::None, 0, 0};
    const RopeTable &rope = program_->ropes[static_cast<size_t>(id)];
    return {ropes_[static_cast<size_t>(id)], rope.magnitude,
            rope.pairs == RopeTable::Pairs::Adjacent ? RopePairs::Adjacent : RopePairs::Halves, rope.first,
            static_cast<int32_t>(2 * rope.inv_freq.size())};
}

AttentionParams AttentionRunner::params(const Launcher &launcher, const Attention &a,
                                        const Operands &operands) const {
    const KvMemory &cache = operands.cache;
    const BatchInput &input = operands.input;
    const DeviceWeights &weights = operands.weights;
    const auto slot = [&](Slot id) { return operands.slots[static_cast<size_t>(id)]; };
    const auto stride = [&](Slot id) { return stride_of(program_->slots[static_cast<size_t>(id)].width); };
    AttentionParams p{};
    const CacheLayer &layer = program_->cache_layers[static_cast<size_t>(a.cache)];
    const int32_t group = layer.group;
    if (a.attends())
        p.q = slot(a.q), p.out = slot(a.out), p.q_stride = stride(a.q), p.out_stride = stride(a.out);
    if (a.k != kNoSlot) {
        p.k = slot(a.k), p.k_stride = stride(a.k);
        if (a.v != kNoSlot) p.v = slot(a.v), p.v_stride = stride(a.v);
    }
    p.latent = is_latent(*program_, a);
    const CacheType k_type = key_type(layer, cache.k_type()), v_type = cache.v_type();
    const bool rotated = layer.f16_keys || (rotates_keys(k_type) && !p.latent);
    p.k_cache = cache_pages(cache.k(a.cache), k_type, a.head_dim_k, rotated);
    p.v_cache =
        p.latent ? p.k_cache : cache_pages(cache.v(a.cache), v_type, a.head_dim_v, rotates_values(v_type));
    if (layer.divided) {
        p.first_block = cache.first_block(group), p.end_block = cache.end_block(group);
        for (CachePages *const pages : {&p.k_cache, &p.v_cache})
            pages->bytes -= int64_t{p.first_block} * a.kv_heads * pages->page_bytes();
    }
    p.side_by_side = is_wide(*program_, a) ? wide_room(a.heads, a.kv_heads) : 0;
    p.q_factors = input.factors(a.temperature);
    p.sequences = input.sequences(), p.sequence_count = input.sequence_count();
    p.tables = input.tables(group), p.table_stride = input.table_stride(group);
    p.positions = input.positions();
    p.q_norm = weights.floats(a.q_norm), p.k_norm = weights.floats(a.k_norm),
    p.sinks = weights.floats(a.sinks), p.slopes = weights.floats(a.slopes);
    p.partial = partials_.as<float>(), p.counters = counters_.as<uint32_t>(), p.totals = totals_.as<float>();
    p.rope = rope_params(a.rope);
    p.heads = a.heads, p.kv_heads = a.kv_heads, p.dim_k = a.head_dim_k, p.dim_v = a.head_dim_v;
    p.scale = a.scale, p.norm_eps = a.norm_eps;
    p.softcap = a.softcap, p.softcap_inverse = 1.0f / a.softcap;
    p.window = a.window, p.chunked = a.window_kind == Attention::Window::Chunked;
    p.sink_cells = a.sink_cells, p.sink_position = a.window + a.sink_cells - 1;
    p.norm_after_rope = a.norm_after_rope;
    if (a.chosen != kNoSlot) {
        p.chosen = slot(a.chosen), p.chosen_stride = stride(a.chosen);
        p.chosen_count =
            static_cast<int32_t>(program_->slots[static_cast<size_t>(a.chosen)].width) / a.chosen_lists;
        p.chosen_pooled = a.chosen_pooled;
        p.chosen_block = a.chosen_block, p.chosen_list = a.chosen_lists == 1 ? 0 : p.chosen_count;
        p.tokens = operands.tokens;
    }
    if (a.stride > 1) {
        // The list of an indexer ends with a block that is not whole, or has one number less (Indexer::pooled).
        p.stride = a.stride, p.chosen_block = 1, p.tokens = operands.tokens;
        p.chosen_count = a.chosen != kNoSlot ? p.chosen_count - 1
                                             : static_cast<int32_t>(p.table_stride * kPageCells / a.stride);
    }
    if (a.sums != kNoSlot) p.sums = slot(a.sums), p.sums_stride = stride(a.sums);
    p.late_trigger = !launcher.switches().trigger, p.no_prefetch = !launcher.switches().prefetch;
    return p;
}

bool AttentionRunner::enqueue(Launcher &launcher, const Attention &a, const QuantizeParams *quantize,
                              const Operands &operands) const {
    const int32_t tokens = operands.tokens;
    const bool wide = is_wide(*program_, a), divided = is_divided(*program_, a);
    AttentionParams p = params(launcher, a, operands);
    if (quantize && tokens <= kLinearTokens && !wide && !divided && p.v_cache.rotated == 0) {
        p.prepare = *quantize;
        if (!can_prepare(p.prepare, tokens, a.heads / a.kv_heads, a.head_dim_v)) p.prepare = {};
    }
    if (operands.shares && p.k != nullptr) {
        p.shared = 1;
        append(launcher, tokens, p);
        p.shared = 0;
    }
    if (!a.attends()) {
        p.max_rows = kAllRows;
        append(launcher, tokens, p);
        return false;
    }
    if (divided) {
        p.max_rows = kAllRows;
        if (p.k != nullptr) append(launcher, tokens, p);
        operands.divided.attend(launcher, operands.messages, a, p);
    } else if (wide) {
        p.max_rows = kAllRows;
        if (p.k != nullptr) append(launcher, tokens, p);
        if (a.chosen != kNoSlot || a.stride > 1)
            launcher.run(attention_chosen_kernel(), kMostAttentionBlocks, attention_chosen_shared(), p);
        else
            launcher.run(attention_wide_kernel(), kMostAttentionBlocks, attention_wide_shared(), p);
    } else {
        attend(launcher, a, p, operands);
    }
    if (p.v_cache.rotated != 0)
        launcher.run(rotate_heads_kernel(), (int64_t{tokens} * a.heads + 3) / 4, kAppendShared,
                     {p.out, p.out_stride, tokens, a.heads, a.head_dim_v});
    return p.prepare.x != nullptr;
}

void AttentionRunner::enqueue(Launcher &launcher, const Rope &step, const Operands &operands) const {
    const auto id = static_cast<size_t>(step.slot);
    const int64_t width = program_->slots[id].width;
    const auto heads = static_cast<int32_t>(width / step.head_dim);
    launcher.run(rope_heads_kernel(), (int64_t{operands.tokens} * heads + 3) / 4, 0,
                 {operands.slots[id], stride_of(width), operands.input.positions(), rope_params(step.rope),
                  operands.tokens, heads, step.head_dim, step.block, step.back});
}

// Chooses decode or prefill for each sequence by its number of rows.
void AttentionRunner::attend(Launcher &launcher, const Attention &a, AttentionParams p,
                             const Operands &operands) {
    const Kernels launches = kernels_of(a, operands.cache.k_type(), operands.cache.v_type());
    const int32_t tokens = operands.tokens;
    const int32_t group = a.heads / a.kv_heads;
    const bool small = tokens <= kLinearTokens;
    p.max_rows = small ? kAllRows : kDecodeRows;
    p.max_tiles =
        small ? (tokens * group + kAttentionRows - 1) / kAttentionRows : kDecodeRows / kAttentionRows;
    p.units = operands.launches.units;
    for (int32_t i = 0; i < operands.launches.count; ++i, p.first_unit += p.units)
        launcher.run(launches.decode, kAllRows, launches.decode_shared, p);
    if (!small) {
        p.min_rows = kDecodeRows, p.max_rows = kAllRows;
        if (p.k != nullptr) append(launcher, tokens, p);
        launcher.run(launches.prefill, prefill_blocks(a.heads, a.kv_heads, tokens), launches.prefill_shared,
                     p);
    }
}

}  // namespace runnel::kernels::cuda
