#include "kernels/cpu/divided_attention.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstring>
#include <numeric>
#include <utility>

#include "gguf/base/trace.h"

namespace runnel::kernels::cpu {
namespace {

// Up to this many tokens of a sequence, partial results are gathered: fewer bytes than keys and values, unless very many query
// heads share a K/V head.
constexpr int32_t kFewTokens = 16;
// Floats of the partial results that are gathered at once, unless one sequence has more.
constexpr size_t kMostPartials = size_t{16} << 20;
constexpr int32_t kBlocksPerRange = kRangeCells / kBlockTokens;

int32_t cells_of(const SequenceSpan &span) {
    return span.past + span.count;
}
int32_t ranges_of(const SequenceSpan &span) {
    return (cells_of(span) + kRangeCells - 1) / kRangeCells;
}
int32_t tiles_of(const Attention &a, const SequenceSpan &span) {
    const int32_t tokens = attention_tile_tokens(a.heads / a.kv_heads);
    return (span.count + tokens - 1) / tokens;
}
size_t partial_floats(const Attention &a, int32_t tokens) {
    AttentionTile shape{};
    shape.pages.head_dim_v = a.head_dim_v;
    shape.tokens = tokens;
    shape.heads = a.heads / a.kv_heads;
    return attention_partial(shape);
}
// Of all ranges and K/V heads.
size_t partial_floats(const Attention &a, const SequenceSpan &span) {
    return partial_floats(a, span.count) * static_cast<size_t>(a.kv_heads) *
           static_cast<size_t>(ranges_of(span));
}

// Vectors here only grow: their memory is used again for the next layer.
template <typename T>
void at_least(std::vector<T> &values, size_t size) {
    if (values.size() < size) values.resize(size);
}

}  // namespace

// Thread 0 calls f, which may allocate and exchange, unless something has failed before. An exception ends the operations of
// all ranks. Returns whether nothing has failed.
template <typename F>
bool DividedAttention::guard(F &&f) noexcept {
    if (error_) return false;
    try {
        f();
        return true;
    } catch (const std::exception &error) {
        error_ = std::current_exception();
        ranks_->abort(error.what());
        return false;
    }
}

void DividedAttention::check() {
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

int32_t DividedAttention::rank_of(const Attention &a, const SequenceSpan &span, int32_t range) const {
    const std::span<const BlockId> table = span.tables[static_cast<size_t>(group(a))];
    return s_.cache->rank_of(group(a), table[static_cast<size_t>(range * kBlocksPerRange)]);
}

void DividedAttention::attend(const AttentionRunner &runner, const Attention &a, const Batch &batch,
                              int thread) noexcept {
    const Spans all = batch.sequences;
    for (size_t first = 0; first < all.size();) {
        if (all[first].count > kFewTokens) {
            attend_many(runner, a, all[first++], thread);
            continue;
        }
        size_t end = first, floats = 0;
        while (end < all.size() && all[end].count <= kFewTokens &&
               (end == first || floats + partial_floats(a, all[end]) <= kMostPartials))
            floats += partial_floats(a, all[end++]);
        attend_few(runner, a, all.subspan(first, end - first), thread);
        first = end;
    }
}

// --- few tokens --------------------------------------------------------------------------------------------

void DividedAttention::attend_few(const AttentionRunner &runner, const Attention &a, Spans spans,
                                  int thread) noexcept {
    if (thread == 0) ready_ = guard([&] { list_ranges(a, spans); });
    s_.pool->barrier();
    if (!ready_) return;
    const auto tile_of = [&](size_t span, int32_t kv_head) {
        return runner.tile(a, spans[span], kv_head, 0, spans[span].count);
    };
    float *scratch = s_.scratch[static_cast<size_t>(thread)].as<float>();
    s_.pool->for_each(thread, static_cast<int64_t>(own_.size()) * a.kv_heads, [&](int64_t unit) {
        const HeldRange &held = own_[static_cast<size_t>(unit / a.kv_heads)];
        const auto kv_head = static_cast<int32_t>(unit % a.kv_heads);
        const AttentionTile tile = tile_of(held.span, kv_head);
        s_.kernels->attend_range(tile, held.range, partial(tile, held.span, kv_head, held.range), scratch);
    });
    s_.pool->barrier();
    if (thread == 0) ready_ = guard([&] { gather_partials(runner, a, spans); });
    s_.pool->barrier();
    if (!ready_) return;
    s_.pool->for_each(thread, static_cast<int64_t>(spans.size()) * a.kv_heads, [&](int64_t unit) {
        const auto span = static_cast<size_t>(unit / a.kv_heads);
        const auto kv_head = static_cast<int32_t>(unit % a.kv_heads);
        const AttentionTile tile = tile_of(span, kv_head);
        s_.kernels->join(tile, partial(tile, span, kv_head, 0), ranges_of(spans[span]));
        runner.rotate_back(a, tile);
    });
    s_.pool->barrier();
}

void DividedAttention::list_ranges(const Attention &a, Spans spans) {
    held_.clear(), own_.clear(), first_partial_.clear();
    size_t floats = 0;
    for (size_t s = 0; s < spans.size(); ++s) {
        first_partial_.push_back(floats);
        floats += partial_floats(a, spans[s]);
        for (int32_t range = 0; range < ranges_of(spans[s]); ++range) {
            held_.push_back({s, range, rank_of(a, spans[s], range)});
            if (held_.back().rank == ranks_->rank()) own_.push_back(held_.back());
        }
    }
    at_least(partials_, floats);
}

float *DividedAttention::partial(const AttentionTile &tile, size_t span, int32_t kv_head, int32_t range) {
    const int32_t ranges = range_count(tile);
    return partials_.data() + first_partial_[span] +
           attention_partial(tile) * static_cast<size_t>(kv_head * ranges + range);
}

// The pieces: [range of the rank][K/V head].
void DividedAttention::gather_partials(const AttentionRunner &runner, const Attention &a, Spans spans) {
    const auto bytes_of = [&](const HeldRange &held) {
        return partial_floats(a, spans[held.span].count) * sizeof(float);
    };
    const auto visit = [&](const HeldRange &held, auto &&f) {
        for (int32_t kv_head = 0; kv_head < a.kv_heads; ++kv_head)
            f(partial(runner.tile(a, spans[held.span], kv_head, 0, spans[held.span].count), held.span,
                      kv_head, held.range),
              bytes_of(held));
    };
    sizes_.assign(static_cast<size_t>(ranks()), 0);
    for (const HeldRange &held : held_)
        sizes_[static_cast<size_t>(held.rank)] += bytes_of(held) * static_cast<size_t>(a.kv_heads);
    const size_t own = sizes_[static_cast<size_t>(ranks_->rank())],
                 all = std::accumulate(sizes_.begin(), sizes_.end(), size_t{0});
    at_least(sent_, own), at_least(received_, all);
    std::byte *to = sent_.data();
    for (const HeldRange &held : own_)
        visit(held, [&](const float *from, size_t bytes) {
            std::memcpy(to, from, bytes);
            to += bytes;
        });
    ranks_->all_gather(std::span(sent_).first(own), sizes_, std::span(received_).first(all));
    const std::byte *from = received_.data();
    for (int32_t rank = 0; rank < ranks(); ++rank) {
        if (rank == ranks_->rank()) {
            from += own;
            continue;
        }
        for (const HeldRange &held : held_)
            if (held.rank == rank)
                visit(held, [&](float *into, size_t bytes) {
                    std::memcpy(into, from, bytes);
                    from += bytes;
                });
    }
}

// --- many tokens -------------------------------------------------------------------------------------------

int32_t DividedAttention::rank_of(const Attention &a, const Unit &unit) const {
    if (by_heads(a)) return unit.kv_head / (a.kv_heads / ranks());
    // Later tiles attend to more cells: 0 1 2 2 1 0 0 1 ...
    const int32_t turn = unit.tile % (2 * ranks());
    return turn < ranks() ? turn : 2 * ranks() - 1 - turn;
}

AttentionTile DividedAttention::tile(const AttentionRunner &runner, const Attention &a,
                                     const SequenceSpan &span, const Unit &unit) const {
    const int32_t most = attention_tile_tokens(a.heads / a.kv_heads), first = unit.tile * most;
    return runner.tile(a, span, unit.kv_head, first, std::min(most, span.count - first));
}

void DividedAttention::attend_many(const AttentionRunner &runner, const Attention &a,
                                   const SequenceSpan &span, int thread) noexcept {
    if (thread == 0)
        ready_ = guard([&] {
            list_units(runner, a, span);
            fetch(a, span, 0);
        });
    s_.pool->barrier();
    if (!ready_) return;
    const int32_t ranges = ranges_of(span), turns = (ranges + ranks() - 1) / ranks();
    const auto units = static_cast<int64_t>(units_.size());
    float *scratch = s_.scratch[static_cast<size_t>(thread)].as<float>();
    float *partial = range_.data() + partial_size_ * static_cast<size_t>(thread);
    const auto joined = [&](int64_t unit) {
        return joined_.data() + partial_size_ * static_cast<size_t>(unit);
    };
    for (int32_t turn = 0; turn < turns; ++turn) {
        if (thread == 0 && turn + 1 < turns) guard([&] { fetch(a, span, turn + 1); });
        const size_t page = k_page_ + v_page_, stride = page * static_cast<size_t>(end_head_ - first_head_);
        s_.pool->for_each(thread, units, [&](int64_t u) {
            const Unit &unit = units_[static_cast<size_t>(u)];
            AttentionTile rows = tile(runner, a, span, unit);
            KvPages &pages = rows.pages;
            pages.k = turns_[turn % 2].data() + page * static_cast<size_t>(unit.kv_head - first_head_);
            if (pages.v) pages.v = pages.k + k_page_;
            pages.k_stride = pages.v_stride = stride;
            pages.table = turn_table_.data();
            pages.first_block = 0;
            const int32_t end = visible_end(rows, rows.first_cell + rows.tokens - 1);
            for (int32_t range = turn * ranks(); range < std::min(ranges, (turn + 1) * ranks()); ++range) {
                if (range * kRangeCells >= end) break;
                s_.kernels->attend_range(rows, range, partial, scratch);
                s_.kernels->add_range(rows, range, partial, joined(u));
            }
            std::atomic_ref(attended_).fetch_add(1, std::memory_order_relaxed);
        });
        s_.pool->barrier();
    }
    s_.pool->for_each(thread, units, [&](int64_t u) {
        const AttentionTile rows = tile(runner, a, span, units_[static_cast<size_t>(u)]);
        s_.kernels->join(rows, joined(u), 1);
        runner.rotate_back(a, rows);
    });
    s_.pool->barrier();
    if (thread == 0) guard([&] { gather_outputs(runner, a, span); });
    s_.pool->barrier();
}

// The last tiles first: they attend to the most cells.
void DividedAttention::list_units(const AttentionRunner &runner, const Attention &a,
                                  const SequenceSpan &span) {
    units_.clear();
    for (int32_t tile = tiles_of(a, span); tile-- > 0;)
        for (int32_t kv_head = 0; kv_head < a.kv_heads; ++kv_head)
            if (const Unit unit{tile, kv_head}; rank_of(a, unit) == ranks_->rank()) units_.push_back(unit);
    partial_size_ = partial_floats(a, attention_tile_tokens(a.heads / a.kv_heads));
    at_least(joined_, partial_size_ * units_.size());
    at_least(range_, partial_size_ * static_cast<size_t>(s_.pool->threads()));

    const KvPages pages = runner.tile(a, span, 0, 0, 1).pages;
    k_page_ = size_t{kBlockTokens} * cache_row_bytes(pages.k_type, pages.head_dim_k);
    v_page_ = pages.v ? size_t{kBlockTokens} * cache_row_bytes(pages.v_type, pages.head_dim_v) : 0;
    const int32_t heads = by_heads(a) ? a.kv_heads / ranks() : a.kv_heads;
    first_head_ = by_heads(a) ? heads * ranks_->rank() : 0;
    end_head_ = first_head_ + heads;
    for (std::vector<std::byte> &turn : turns_)
        at_least(turn, (k_page_ + v_page_) * static_cast<size_t>(heads) *
                           static_cast<size_t>(kBlocksPerRange * ranks()));
    turn_table_.resize(static_cast<size_t>(ranges_of(span) * kBlocksPerRange));
    for (size_t i = 0; i < turn_table_.size(); ++i)
        turn_table_[i] = static_cast<BlockId>(i) % (kBlocksPerRange * ranks());
}

// Brings the pages of a turn's ranges to the ranks that attend to them.
void DividedAttention::fetch(const Attention &a, const SequenceSpan &span, int32_t turn) {
    const std::span<const BlockId> table = span.tables[static_cast<size_t>(group(a))];
    const int32_t heads = end_head_ - first_head_,
                  blocks = (cells_of(span) + kBlockTokens - 1) / kBlockTokens;
    const size_t page = k_page_ + v_page_, stride = page * static_cast<size_t>(heads);
    // Copies the pages of a range that this rank holds; returns the end of the copy.
    const auto pack = [&](int32_t range, int32_t first_head, std::byte *to) {
        const int32_t end = std::min(blocks, (range + 1) * kBlocksPerRange);
        for (int32_t block = range * kBlocksPerRange; block < end; ++block)
            for (int32_t head = first_head; head < first_head + heads; ++head, to += page) {
                const KvPages from = s_.cache->pages(a, head, nullptr);
                const auto at = static_cast<size_t>(table[static_cast<size_t>(block)] - from.first_block);
                std::memcpy(to, from.k + at * from.k_stride, k_page_);
                if (from.v) std::memcpy(to + k_page_, from.v + at * from.v_stride, v_page_);
            }
        return to;
    };
    const auto bytes_of = [&](int32_t range) {
        return stride * static_cast<size_t>(std::min(kBlocksPerRange, blocks - range * kBlocksPerRange));
    };
    std::vector<int32_t> own;
    size_t own_bytes = 0;
    std::vector<Communicator::Receive> receives;
    const int32_t first = turn * ranks(), end = std::min(ranges_of(span), first + ranks());
    for (int32_t range = first; range < end; ++range) {
        std::byte *place =
            turns_[turn % 2].data() + static_cast<size_t>((range - first) * kBlocksPerRange) * stride;
        if (const int32_t rank = rank_of(a, span, range); rank != ranks_->rank()) {
            receives.push_back({rank, {place, bytes_of(range)}});
            continue;
        }
        pack(range, first_head_, place);
        own.push_back(range);
        own_bytes += bytes_of(range);
    }
    // One copy for each rank's K/V heads; the same one for all if they all need all heads.
    const size_t copies = by_heads(a) ? static_cast<size_t>(ranks()) : 1;
    at_least(sent_, own_bytes * copies);
    std::vector<Communicator::Send> sends;
    for (int32_t to = 0; to < ranks(); ++to) {
        if (to == ranks_->rank()) continue;
        std::byte *at = sent_.data() + (by_heads(a) ? own_bytes * static_cast<size_t>(to) : 0);
        const bool packed = !by_heads(a) && !sends.empty();
        for (const int32_t range : own) {
            if (!packed) pack(range, by_heads(a) ? heads * to : 0, at);
            sends.push_back({to, {at, bytes_of(range)}});
            at += bytes_of(range);
        }
    }
    base::TraceSpan exchanging("keys and values");
    exchanging.note("turn", turn);
    const auto attended = [&] { return std::atomic_ref(attended_).load(std::memory_order_relaxed); };
    const int64_t before = attended();
    ranks_->exchange(sends, receives);
    exchanging.note("tiles finished meanwhile", attended() - before);
}

// The pieces: [unit of the rank, in the order of list_units()][token][head_dim_v of the K/V head's query heads].
void DividedAttention::gather_outputs(const AttentionRunner &runner, const Attention &a,
                                      const SequenceSpan &span) {
    const auto visit = [&](const Unit &unit, auto &&f) {
        const AttentionTile rows = tile(runner, a, span, unit);
        const size_t bytes = static_cast<size_t>(rows.heads * a.head_dim_v) * sizeof(float);
        for (int32_t token = 0; token < rows.tokens; ++token) f(rows.out + token * rows.out_stride, bytes);
    };
    const auto visit_rank = [&](int32_t rank, auto &&f) {
        for (int32_t tile = tiles_of(a, span); tile-- > 0;)
            for (int32_t kv_head = 0; kv_head < a.kv_heads; ++kv_head)
                if (const Unit unit{tile, kv_head}; rank_of(a, unit) == rank) visit(unit, f);
    };
    sizes_.assign(static_cast<size_t>(ranks()), 0);
    for (int32_t rank = 0; rank < ranks(); ++rank)
        visit_rank(rank, [&](const float *, size_t bytes) { sizes_[static_cast<size_t>(rank)] += bytes; });
    const size_t own = sizes_[static_cast<size_t>(ranks_->rank())],
                 all = std::accumulate(sizes_.begin(), sizes_.end(), size_t{0});
    at_least(sent_, own), at_least(received_, all);
    std::byte *to = sent_.data();
    visit_rank(ranks_->rank(), [&](const float *from, size_t bytes) {
        std::memcpy(to, from, bytes);
        to += bytes;
    });
    ranks_->all_gather(std::span(sent_).first(own), sizes_, std::span(received_).first(all));
    const std::byte *from = received_.data();
    for (int32_t rank = 0; rank < ranks(); ++rank)
        visit_rank(rank, [&](float *into, size_t bytes) {
            if (rank != ranks_->rank()) std::memcpy(into, from, bytes);
            from += bytes;
        });
}

}  // namespace runnel::kernels::cpu
