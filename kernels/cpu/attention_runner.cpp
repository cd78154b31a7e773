#include "kernels/cpu/attention_runner.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>

#include "kernels/steps.h"

namespace runnel::kernels::cpu {
namespace {

constexpr size_t kMostPairs = 1024;  // that a Rope step rotates
constexpr int32_t kRangeTokens = 4;  // up to this many tokens, attention may be split into ranges of keys

// The factor that q is multiplied by at a position.
float temperature(const Attention::Temperature &t, int32_t position) {
    const int64_t steps = (int64_t{position} + t.offset) / t.length;
    return static_cast<float>(1 + static_cast<double>(t.beta) * std::log1p(static_cast<double>(steps)));
}

}  // namespace

size_t AttentionRunner::scratch_bytes(const Attention &a) {
    const int32_t group = a.heads / a.kv_heads;
    return sizeof(float) * attention_scratch(a.head_dim_k, a.head_dim_v,
                                             group * std::max(kRangeTokens, attention_tile_tokens(group)));
}

Attention AttentionRunner::keys_of(const Indexer &s) {
    Attention keys{};
    keys.q = s.q, keys.k = s.k, keys.v = keys.out = kNoSlot;
    keys.cache = s.cache;
    keys.heads = s.heads, keys.kv_heads = 1;
    keys.head_dim_k = s.head_dim;
    keys.rope = s.rope;
    keys.layer = s.layer;
    return keys;
}

AttentionRunner::AttentionRunner(const Surroundings &surroundings, const CacheConfig &cache,
                                 int32_t max_tokens)
    : s_(surroundings), k_type_(cache.k), v_type_(cache.v) {
    const size_t row_bytes = static_cast<size_t>(max_tokens) * sizeof(float);
    size_t sink_q = 0, partials = 0;
    for_each_step<Attention>(*s_.program, [&](const Attention &a) {
        if (!a.attends()) return;
        partials = std::max(partials, partials_of(a, cache) * sizeof(float));
        if (a.sink_cells == 0) return;
        sink_q = std::max(sink_q, row_bytes * static_cast<size_t>(width(a.q)));
        assert(sink_position_ < 0 || sink_position_ == a.window + a.sink_cells - 1);
        sink_position_ = a.window + a.sink_cells - 1;
    });
    partials_ = LazyBuffer(partials, "attention");
    sink_q_ = LazyBuffer(sink_q, "activations");
    for (Rotations *rotations : {&rotations_, &sink_rotations_})
        for (const RopeTable &rope : s_.program->ropes) {
            rotations->cosines.emplace_back(row_bytes * rope.inv_freq.size(), "rotations");
            rotations->sines.emplace_back(row_bytes * rope.inv_freq.size(), "rotations");
        }
}

void AttentionRunner::rotations(const Batch &batch, int thread) noexcept {
    const int32_t rows = static_cast<int32_t>(batch.tokens.size());
    const auto compute = [&](Rotations &rotations, size_t r, int32_t t, int32_t position) {
        const RopeTable &rope = s_.program->ropes[r];
        const size_t at = static_cast<size_t>(t) * rope.inv_freq.size();
        rope_row(rope, position, rotations.cosines[r].as<float>() + at, rotations.sines[r].as<float>() + at);
    };
    for (size_t r = 0; r < s_.program->ropes.size(); ++r)
        for (int32_t t = thread; t < rows; t += s_.pool->threads()) {
            const int32_t position = batch.positions[static_cast<size_t>(t)];
            compute(rotations_, r, t, position);
            if (sink_position_ >= 0) compute(sink_rotations_, r, t, std::min(position, sink_position_));
        }
}

// Norm and rotation of consecutive heads of a token.
void AttentionRunner::turn(const Attention &a, float *head, int32_t heads, WeightId norm, int32_t token,
                           const Rotations &rotations) noexcept {
    const auto normalize_heads = [&] {
        for (int32_t h = 0; h < heads && norm != kNoWeight; ++h) {
            float *x = head + h * a.head_dim_k;
            s_.vector->rms_norm(x, {vector_of(norm), nullptr, nullptr}, a.head_dim_k, a.norm_eps, x);
        }
    };
    if (!a.norm_after_rope) normalize_heads();
    if (a.rope >= 0) {
        const size_t r = static_cast<size_t>(a.rope);
        const RopeTable &rope = s_.program->ropes[r];
        const size_t pairs = rope.inv_freq.size(), at = static_cast<size_t>(token) * pairs;
        s_.vector->rope(head + rope.first, heads, a.head_dim_k, rotations.cosines[r].as<float>() + at,
                        rotations.sines[r].as<float>() + at, static_cast<int32_t>(pairs), rope.pairs);
    }
    if (a.norm_after_rope) normalize_heads();
}

// A unit is a token.
void AttentionRunner::run(const Rope &step, const Batch &batch, int thread) noexcept {
    const auto r = static_cast<size_t>(step.rope);
    const RopeTable &rope = s_.program->ropes[r];
    const size_t pairs = rope.inv_freq.size();
    const auto heads = static_cast<int32_t>(width(step.slot) / step.head_dim);
    std::array<float, kMostPairs> cosines, sines;
    s_.pool->for_ranges(thread, static_cast<int64_t>(batch.tokens.size()), [&](int64_t first, int64_t last) {
        for (int64_t t = first; t < last; ++t) {
            const int32_t end = batch.positions[static_cast<size_t>(t)] + 1;
            if (end % step.block != 0) continue;
            if (step.block > 1) {
                rope_row(rope, end - step.block, cosines.data(), sines.data());
            } else {
                const size_t at = static_cast<size_t>(t) * pairs;
                std::copy_n(rotations_.cosines[r].as<float>() + at, pairs, cosines.data());
                std::copy_n(rotations_.sines[r].as<float>() + at, pairs, sines.data());
            }
            if (step.back)
                for (size_t j = 0; j < pairs; ++j) sines[j] = -sines[j];
            s_.vector->rope(row(step.slot, static_cast<int32_t>(t)) + rope.first, heads, step.head_dim,
                            cosines.data(), sines.data(), static_cast<int32_t>(pairs), rope.pairs);
        }
    });
}

// Normalizes and rotates a token's query heads of one K/V head. With sink cells, also a copy, rotated for those.
void AttentionRunner::prepare_queries(const Attention &a, int32_t kv_head, int32_t token,
                                      int32_t position) noexcept {
    const int32_t group = a.heads / a.kv_heads;
    const int64_t at = int64_t{kv_head} * group * a.head_dim_k, size = int64_t{group} * a.head_dim_k;
    float *q = row(a.q, token) + at;
    const auto prepare = [&](float *x, const Rotations &rotations) {
        turn(a, x, group, a.q_norm, token, rotations);
        if (a.temperature.beta != 0) s_.vector->scale(temperature(a.temperature, position), x, size, x);
        if (rotates_k(a)) rotate_heads(x, group, a.head_dim_k);
    };
    if (a.sink_cells > 0) {
        float *sink_q = sink_row(a, token) + at;
        std::copy_n(q, size, sink_q);
        prepare(sink_q, sink_rotations_);
    }
    prepare(q, rotations_);
}

// Writes the token's cell, and the cells of draft branches that share the token, if this device holds them. work: scratch of
// head_dim_v floats.
void AttentionRunner::append_cell(const Attention &a, const Batch &batch, const SequenceSpan &sequence,
                                  int32_t kv_head, int32_t token, float *work) noexcept {
    float *k = row(a.k, token) + kv_head * a.head_dim_k;
    const float *v = a.v == kNoSlot ? nullptr : row(a.v, token) + kv_head * a.head_dim_v;
    turn(a, k, 1, a.k_norm, token, rotations_);
    if (rotates_k(a)) rotate_heads(k, 1, a.head_dim_k);
    if (v && rotates_v(a)) {
        std::copy_n(v, a.head_dim_v, work);
        rotate_heads(work, 1, a.head_dim_v);
        v = work;
    }
    const auto append = [&](const SequenceSpan &to, int32_t cell) {
        const BlockId block = to.tables[group(a)][static_cast<size_t>(cell / kBlockTokens)];
        if (!s_.cache->holds(layer(a).group, block)) return;
        s_.kernels->append(s_.cache->pages(a, kv_head, to.tables[group(a)].data()), cell, 1, k, width(a.k), v,
                           v ? width(a.v) : 0);
    };
    append(sequence, sequence.past + token - sequence.first);
    for (const SequenceSpan &other : batch.sequences)
        if (const int32_t i = token - other.shared_from; i >= 0 && i < other.shared)
            append(other, other.past - other.shared + i);
}

// A thread's range of units.
struct AttentionRunner::Share {
    int64_t first, end;
};
AttentionRunner::Share AttentionRunner::share(int64_t units, int thread) const noexcept {
    return {units * thread / s_.pool->threads(), units * (thread + 1) / s_.pool->threads()};
}

void AttentionRunner::append(const Attention &a, const Batch &batch, int thread) noexcept {
    for (const SequenceSpan &sequence : batch.sequences) {
        if (!a.attends()) break;
        const Share mine = share(int64_t{sequence.count} * a.kv_heads, thread);
        for (int64_t unit = mine.first; unit < mine.end; ++unit) {
            const int32_t token = sequence.first + static_cast<int32_t>(unit / a.kv_heads);
            prepare_queries(a, static_cast<int32_t>(unit % a.kv_heads), token,
                            batch.positions[static_cast<size_t>(token)]);
        }
    }
    if (a.k != kNoSlot) append_cells(a, batch, thread);
}

// Cells of a page can share bytes (q4_0), so one thread writes all new cells of a page.
void AttentionRunner::append_cells(const Attention &a, const Batch &batch, int thread) noexcept {
    float *work = scratch(thread);
    const auto append = [&](const SequenceSpan &s, int32_t kv_head, int32_t first_cell, int32_t end_cell) {
        for (int32_t cell = std::max(first_cell, s.past); cell < std::min(end_cell, s.past + s.count); ++cell)
            append_cell(a, batch, s, kv_head, s.first + cell - s.past, work);
    };
    if (std::ranges::any_of(batch.sequences, [](const SequenceSpan &s) { return s.shared > 0; })) {
        // A token can go into the pages of several sequences here, so the unit is a K/V head.
        const Share mine = share(a.kv_heads, thread);
        for (int64_t head = mine.first; head < mine.end; ++head)
            for (const SequenceSpan &s : batch.sequences)
                append(s, static_cast<int32_t>(head), s.past, s.past + s.count);
        return;
    }
    for (const SequenceSpan &s : batch.sequences) {
        const int32_t first_page = s.past / kBlockTokens;
        const int32_t pages = (s.past + s.count - 1) / kBlockTokens - first_page + 1;
        const Share mine = share(int64_t{pages} * a.kv_heads, thread);
        for (int64_t unit = mine.first; unit < mine.end; ++unit) {
            const int32_t cell = (first_page + static_cast<int32_t>(unit / a.kv_heads)) * kBlockTokens;
            append(s, static_cast<int32_t>(unit % a.kv_heads), cell, cell + kBlockTokens);
        }
    }
}

// The outputs are sums of rotated values: rotates them back.
void AttentionRunner::rotate_back(const Attention &a, const AttentionTile &tile) const noexcept {
    if (!rotates_v(a)) return;
    for (int32_t t = 0; t < tile.tokens; ++t)
        rotate_heads(tile.out + t * tile.out_stride, tile.heads, a.head_dim_v);
}

AttentionTile AttentionRunner::tile(const Attention &a, const SequenceSpan &sequence, int32_t kv_head,
                                    int32_t first, int32_t tokens) const noexcept {
    const int32_t heads = a.heads / a.kv_heads;
    const size_t table = group(a);
    const int64_t chosen = a.chosen == kNoSlot ? 0 : width(a.chosen) / a.chosen_lists;  // of a list
    return {
        .pages = s_.cache->pages(a, kv_head, sequence.tables[table].data()),
        .q = row(a.q, sequence.first + first) + kv_head * heads * a.head_dim_k,
        .out = row(a.out, sequence.first + first) + kv_head * heads * a.head_dim_v,
        .q_stride = width(a.q),
        .out_stride = width(a.out),
        .tokens = tokens,
        .heads = heads,
        .first_cell = sequence.past + first,
        .window = a.window,
        .scale = a.scale,
        .chunked = a.window_kind == Attention::Window::Chunked,
        .softcap = a.softcap,
        .sinks = a.sinks == kNoWeight ? nullptr : vector_of(a.sinks) + kv_head * heads,
        .slopes = a.slopes == kNoWeight ? nullptr : vector_of(a.slopes) + kv_head * heads,
        .sink_cells = a.sink_cells,
        .sink_q = a.sink_cells == 0 ? nullptr
                                    : sink_row(a, sequence.first + first) + kv_head * heads * a.head_dim_k,
        .common_end = sequence.both_ways ? sequence.past + sequence.count : 0,
        .chosen = a.chosen == kNoSlot
                      ? nullptr
                      : row(a.chosen, sequence.first + first) + (a.chosen_lists == 1 ? 0 : kv_head * chosen),
        .chosen_stride = a.chosen == kNoSlot ? 0 : width(a.chosen),
        .chosen_count = static_cast<int32_t>(chosen),
        .chosen_block = a.chosen_block,
        .chosen_pooled = a.chosen_pooled,
        .stride = a.stride,
        .sums =
            a.sums == kNoSlot ? nullptr : row(a.sums, sequence.first + first) + int64_t{kv_head} * heads * 2,
        .sums_stride = a.sums == kNoSlot ? 0 : width(a.sums)};
}

size_t AttentionRunner::partials_of(const Attention &a, const CacheConfig &cache) const {
    const size_t ranges = static_cast<size_t>(cache.blocks[group(a)]) * kBlockTokens / kRangeCells + 3;
    AttentionTile shape{};
    shape.pages.head_dim_k = a.head_dim_k;
    shape.pages.head_dim_v = a.head_dim_v;
    shape.tokens = kRangeTokens;
    shape.heads = a.heads / a.kv_heads;
    return attention_partial(shape) * ranges * static_cast<size_t>(a.kv_heads);
}

// For few tokens, a long context and fewer K/V heads than threads: a unit is one range of keys of one head.
// The ranges are those that attend() uses itself, so the result is the same.
void AttentionRunner::attend_by_ranges(const Attention &a, const SequenceSpan &sequence,
                                       int thread) noexcept {
    const int32_t ranges = range_count(tile(a, sequence, 0, 0, sequence.count));
    const auto partial = [&](int32_t kv_head, int32_t range) {
        const AttentionTile t = tile(a, sequence, kv_head, 0, sequence.count);
        return partials_.as<float>() + attention_partial(t) * static_cast<size_t>(kv_head * ranges + range);
    };
    s_.pool->for_each(thread, int64_t{a.kv_heads} * ranges, [&](int64_t unit) {
        const int32_t kv_head = static_cast<int32_t>(unit / ranges),
                      range = static_cast<int32_t>(unit % ranges);
        s_.kernels->attend_range(tile(a, sequence, kv_head, 0, sequence.count), range,
                                 partial(kv_head, range), scratch(thread));
    });
    s_.pool->barrier();
    s_.pool->for_each(thread, a.kv_heads, [&](int64_t kv_head) {
        const int32_t head = static_cast<int32_t>(kv_head);
        const AttentionTile rows = tile(a, sequence, head, 0, sequence.count);
        s_.kernels->join(rows, partial(head, 0), ranges);
        rotate_back(a, rows);
    });
}

void AttentionRunner::attend(const Attention &a, const Batch &batch, int thread) noexcept {
    const SequenceSpan &only = batch.sequences[0];
    const bool one_short = batch.sequences.size() == 1 && only.count <= kRangeTokens;
    if (one_short && s_.pool->threads() > 1 && a.kv_heads < 4 * s_.pool->threads() &&
        range_count(tile(a, only, 0, 0, only.count)) > 1) {
        attend_by_ranges(a, only, thread);
        return;
    }
    // Units of all sequences, numbered together: the largest first, as later tokens attend to more keys.
    const int32_t step = attention_tile_tokens(a.heads / a.kv_heads);
    const auto tiles = [&](const SequenceSpan &s) { return (s.count + step - 1) / step; };
    int64_t units = 0;
    for (const SequenceSpan &s : batch.sequences) units += int64_t{tiles(s)} * a.kv_heads;
    s_.pool->for_each(thread, units, [&](int64_t unit) {
        size_t s = 0;
        while (unit >= int64_t{tiles(batch.sequences[s])} * a.kv_heads)
            unit -= int64_t{tiles(batch.sequences[s++])} * a.kv_heads;
        const SequenceSpan &sequence = batch.sequences[s];
        const int32_t first = (tiles(sequence) - 1 - static_cast<int32_t>(unit / a.kv_heads)) * step;
        const int32_t kv_head = static_cast<int32_t>(unit % a.kv_heads);
        const AttentionTile rows = tile(a, sequence, kv_head, first, std::min(step, sequence.count - first));
        s_.kernels->attend(rows, scratch(thread));
        rotate_back(a, rows);
    });
}

}  // namespace runnel::kernels::cpu
