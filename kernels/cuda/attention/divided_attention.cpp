#include "kernels/cuda/attention/divided_attention.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "kernels/cuda/attention/attention_memory.h"
#include "kernels/cuda/steps/elementwise.h"
#include "kernels/steps.h"

namespace runnel::kernels::cuda {
namespace {

constexpr size_t kPieceBytes = size_t{16} << 20;  // that a rank sends at a time, about
constexpr int32_t kLeastPieces = 4;  // of a full cache, so that their buffers are small beside it
constexpr int32_t kRangeBlocks = kRangeCells / kBlockTokens;
constexpr int64_t kMostUnfinished = 64;  // sequences whose last split is counted besides those of the pool

template <typename F>
void for_each_divided(const Program &program, F &&f) {
    for_each_step<Attention>(program, [&](const Attention &a) {
        const CacheLayer &layer = program.cache_layers[static_cast<size_t>(a.cache)];
        if (a.attends() && layer.divided) f(a, layer);
    });
}

size_t rows_bytes(int32_t heads, int32_t dim_v) {
    return static_cast<size_t>(heads) * static_cast<size_t>(dim_v + 2) * sizeof(float);
}

// The pieces of the outputs that the ranks exchange, one after the other, by rank.
struct OutputPiece {
    int32_t rank, first_token, tokens;
    int32_t column, columns;
    size_t at;  // its first float among all pieces
};

// Sends this rank's message to all others and receives theirs. message_of(rank): where the rank's bytes are on this device.
template <typename F>
void exchange_with_all(Messages &messages, const DividedGroup &group, F message_of) {
    std::vector<Messages::Message> sends, receives;
    const Messages::Message own = message_of(group.rank);
    for (int32_t rank = 0; rank < group.ranks; ++rank) {
        if (rank == group.rank) continue;
        if (own.bytes > 0) sends.push_back({rank, own.data, own.bytes});
        if (const Messages::Message other = message_of(rank); other.bytes > 0) receives.push_back(other);
    }
    messages.exchange(sends, receives);
}

}  // namespace

// --- memory ------------------------------------------------------------------------------------------------

std::vector<DividedGroup> DividedAttention::groups_of(const Program &program, const CacheConfig &cache,
                                                      int32_t max_tokens) {
    std::vector<DividedGroup> groups;
    for_each_divided(program, [&](const Attention &, const CacheLayer &layer) {
        const auto g = static_cast<size_t>(layer.group);
        if (std::ranges::any_of(groups,
                                [&](const DividedGroup &known) { return known.group == layer.group; }))
            return;
        DividedGroup group{layer.group, cache.shares[g], 0, cache.blocks[g], 0};
        if (group.blocks > 0) group.rank = cache.first[g] / group.blocks;
        group.room = int64_t{group.ranks} * group.blocks * kBlockTokens / kAttentionSplit +
                     std::min<int64_t>(max_tokens, kMostUnfinished);
        groups.push_back(group);
    });
    return groups;
}

DividedAttention::HeadRange DividedAttention::heads_of(const DividedGroup &group, int32_t kv_heads,
                                                       int32_t rank) {
    if (!by_heads(group, kv_heads)) return {0, kv_heads};
    const int32_t first = kv_heads * rank / group.ranks;
    return {first, kv_heads * (rank + 1) / group.ranks - first};
}

int32_t DividedAttention::blocks_of_piece(const DividedGroup &group, const Pages &pages) {
    const size_t block = pages.both() * static_cast<size_t>(pages.kv_heads);
    const auto blocks = static_cast<int32_t>(std::min<size_t>(kPieceBytes / block, INT32_MAX));
    return std::max(std::min(blocks, group.blocks / kLeastPieces), kRangeBlocks);
}

DividedAttention::Sizes DividedAttention::sizes(const Program &program, const CacheConfig &cache,
                                                int32_t max_tokens) {
    Sizes most;
    const std::vector<DividedGroup> groups = groups_of(program, cache, max_tokens);
    const auto at_least = [](size_t &size, size_t needed) { size = std::max(size, needed); };
    for_each_divided(program, [&](const Attention &a, const CacheLayer &layer) {
        const DividedGroup &group = *std::ranges::find(groups, layer.group, &DividedGroup::group);
        const Pages pages{layer.kv_heads,
                          kBlockTokens * cache_row_bytes(key_type(layer, cache.k), layer.head_dim_k),
                          kBlockTokens * cache_row_bytes(cache.v, layer.head_dim_v)};
        const auto ranks = static_cast<size_t>(group.ranks),
                   heads = static_cast<size_t>(heads_of(group, layer.kv_heads, group.rank).count),
                   piece = static_cast<size_t>(blocks_of_piece(group, pages)) * pages.both(),
                   outputs = static_cast<size_t>(max_tokens) * static_cast<size_t>(a.heads) *
                             static_cast<size_t>(a.head_dim_v) * sizeof(float);
        at_least(most.copy, ranks * static_cast<size_t>(group.blocks) * heads * pages.both());
        at_least(most.sent, piece * static_cast<size_t>(layer.kv_heads));
        at_least(most.received, std::max(ranks * piece * heads, outputs));
        at_least(most.partial, static_cast<size_t>(group.room) * rows_bytes(a.heads, a.head_dim_v));
    });
    for (const DividedGroup &group : groups) {
        const auto sequences = static_cast<size_t>(max_tokens), room = static_cast<size_t>(group.room);
        most.lists += sizeof(int32_t) * static_cast<size_t>(group.ranks) * static_cast<size_t>(group.blocks) +
                      sequences * (2 * sizeof(SequenceInfo) + sizeof(DividedSequence)) +
                      room * (sizeof(HeldSplit) + sizeof(int32_t));
    }
    return most;
}

size_t DividedAttention::bytes(const Program &program, const CacheConfig &cache, int32_t max_tokens) {
    const Sizes all = sizes(program, cache, max_tokens);
    return all.copy + all.sent + all.received + all.partial + all.lists;
}

DividedAttention::DividedAttention(const Program &program, const CacheConfig &cache, int32_t max_tokens)
    : program_(&program), groups_(groups_of(program, cache, max_tokens)) {
    const Sizes all = sizes(program, cache, max_tokens);
    const auto memory = [](size_t bytes) {
        return bytes > 0 ? DeviceMemory(bytes, "divided attention") : DeviceMemory();
    };
    copy_ = memory(all.copy), sent_ = memory(all.sent), received_ = memory(all.received);
    partial_ = memory(all.partial), lists_ = memory(all.lists);
    if (all.lists > 0) staged_ = PinnedMemory(all.lists);
}

void DividedAttention::prepare(const Program &program, const Attention &step, const CacheConfig &cache) {
    cuda::prepare(attention_join_kernel().handle, 0);
    cuda::prepare(copy_pages_kernel().handle, 0);
    if (is_wide(program, step))
        cuda::prepare(attention_wide_held_kernel().handle, attention_wide_shared());
    else
        cuda::prepare(attention_held_kernel(cache.k, cache.v, step.head_dim_k, step.head_dim_v).handle,
                      attention_decode_shared(cache.k, cache.v, step.head_dim_k, step.head_dim_v));
}

// --- batches -----------------------------------------------------------------------------------------------

void DividedAttention::upload(Stream &stream, const Batch &batch) {
    if (groups_.empty()) return;
    words_.clear();
    batches_.clear();
    for (const DividedGroup &group : groups_) batches_.push_back(divide_batch(group, batch, words_));
    const size_t size = words_.size() * sizeof(int32_t);
    if (size > lists_.size()) {  // sequences that share blocks, in large numbers
        lists_ = DeviceMemory(size + size / 2, "divided attention");
        staged_ = PinnedMemory(lists_.size());
    }
    std::memcpy(staged_.data(), words_.data(), size);
    stream.copy_to_device(lists_.data(), staged_.data(), size);
}

void DividedAttention::attend(Launcher &launcher, Messages &messages, const Attention &a,
                              AttentionParams p) const {
    const int32_t group = program_->cache_layers[static_cast<size_t>(a.cache)].group;
    const auto at = std::ranges::find(groups_, group, &DividedGroup::group) - groups_.begin();
    const DividedGroup &divided = groups_[static_cast<size_t>(at)];
    const DividedBatch &batch = batches_[static_cast<size_t>(at)];
    p.k = p.v = nullptr;
    p.min_rows = 0, p.max_rows = INT32_MAX;
    for (const DividedBatch::Round &round : batch.rounds) attend_few(launcher, messages, divided, round, p);
    if (batch.many_tokens > 0) attend_many(launcher, messages, divided, batch, p);
}

// --- few tokens --------------------------------------------------------------------------------------------

void DividedAttention::attend_few(Launcher &launcher, Messages &messages, const DividedGroup &group,
                                  const DividedBatch::Round &round, AttentionParams p) const {
    p.partial = partial_.as<float>();
    p.held = listed<HeldSplit>(round.held), p.held_splits = round.held_splits;
    p.divided = listed<DividedSequence>(round.divided), p.divided_sequences = round.sequences;
    p.places = listed<int32_t>(round.places);
    p.most_rows = round.most_tokens * (p.heads / p.kv_heads);
    p.most_units = p.kv_heads * ((p.most_rows + kAttentionRows - 1) / kAttentionRows);
    if (const int64_t items = int64_t{p.held_splits} * p.most_units; items > 0) {
        const CacheType k = p.k_cache.type, v = p.v_cache.type;
        if (is_wide(p.latent != 0, p.dim_k, p.dim_v))
            launcher.run(attention_wide_held_kernel(), items, attention_wide_shared(), p);
        else
            launcher.run(attention_held_kernel(k, v, p.dim_k, p.dim_v), items,
                         attention_decode_shared(k, v, p.dim_k, p.dim_v), p);
    }
    const auto rows = [&](int32_t rank) {
        const auto end = [&](int32_t r) {
            return r < 0 ? size_t{0}
                         : static_cast<size_t>(round.ends[static_cast<size_t>(r)]) *
                               rows_bytes(p.heads, p.dim_v);
        };
        return Messages::Message{rank, partial_.data() + end(rank - 1), end(rank) - end(rank - 1)};
    };
    exchange_with_all(messages, group, rows);
    launcher.run(attention_join_kernel(), attention_join_blocks(p), 0, p);
}

// --- many tokens -------------------------------------------------------------------------------------------

void DividedAttention::attend_many(Launcher &launcher, Messages &messages, const DividedGroup &group,
                                   const DividedBatch &batch, AttentionParams p) const {
    const Pages pages{p.kv_heads, static_cast<size_t>(p.k_cache.page_bytes()),
                      p.latent != 0 ? 0 : static_cast<size_t>(p.v_cache.page_bytes())};
    fetch_pages(launcher, messages, group, batch, p, pages);
    AttentionParams own = p;
    const bool heads = by_heads(group, p.kv_heads);
    const HeadRange range = heads_of(group, p.kv_heads, group.rank);
    own.k_cache.bytes = copy_.as<unsigned char>();
    own.v_cache.bytes = own.k_cache.bytes;
    if (p.latent == 0)
        own.v_cache.bytes += pages.k * static_cast<size_t>(range.count) * static_cast<size_t>(group.ranks) *
                             static_cast<size_t>(group.blocks);
    own.sequences = listed<SequenceInfo>(heads ? batch.whole : batch.own);
    own.side_by_side = 0;
    if (heads) {
        const int32_t rows = p.heads / p.kv_heads, first = range.first * rows;
        own.kv_heads = range.count, own.heads = range.count * rows;
        own.q += int64_t{first} * p.dim_k, own.out += int64_t{first} * p.dim_v;
        if (own.sinks) own.sinks += first;
        if (own.slopes) own.slopes += first;
    }
    if (is_wide(p.latent != 0, p.dim_k, p.dim_v))
        launcher.run(attention_wide_kernel(), kMostAttentionBlocks, attention_wide_shared(), own);
    else
        launcher.run(attention_prefill_kernel(p.k_cache.type, p.v_cache.type, p.dim_k, p.dim_v),
                     prefill_blocks(own.heads, own.kv_heads, batch.many_tokens),
                     attention_prefill_shared(p.k_cache.type, p.v_cache.type, p.dim_k, p.dim_v), own);
    exchange_outputs(launcher, messages, group, batch, p);
}

// Brings the pages of all cells of the sequences into copy_: those of K of all ranks' blocks, then those of V.
void DividedAttention::fetch_pages(Launcher &launcher, Messages &messages, const DividedGroup &group,
                                   const DividedBatch &batch, const AttentionParams &p,
                                   const Pages &pages) const {
    const HeadRange mine = heads_of(group, pages.kv_heads, group.rank);
    const auto heads = static_cast<size_t>(mine.count);
    const size_t block = pages.both(),
                 blocks = static_cast<size_t>(group.ranks) * static_cast<size_t>(group.blocks);
    const int32_t most = blocks_of_piece(group, pages);
    const auto *listed_pages = listed<int32_t>(batch.pages);
    const auto first_of = [&](int32_t rank) {
        return rank == 0 ? 0 : batch.page_ends[static_cast<size_t>(rank) - 1];
    };
    // The number of blocks that the rank sends in the piece that begins with its block `from`.
    const auto count_of = [&](int32_t rank, int32_t from) {
        return std::clamp(batch.page_ends[static_cast<size_t>(rank)] - first_of(rank) - from, 0, most);
    };
    const auto copy = [&](int32_t rank, int32_t from, unsigned char *k, unsigned char *v, int32_t kv_heads,
                          std::byte *packed, bool unpack) {
        const CopyPagesParams params{k,
                                     v,
                                     reinterpret_cast<unsigned char *>(packed),
                                     listed_pages + first_of(rank) + from,
                                     static_cast<int64_t>(pages.k),
                                     static_cast<int64_t>(pages.v),
                                     count_of(rank, from),
                                     kv_heads,
                                     unpack};
        launcher.run(copy_pages_kernel(), copy_pages_blocks(params), 0, params);
    };
    int32_t longest = 0;
    for (int32_t rank = 0; rank < group.ranks; ++rank)
        longest = std::max(longest, batch.page_ends[static_cast<size_t>(rank)] - first_of(rank));
    for (int32_t from = 0; from < longest; from += most) {
        const auto count = static_cast<size_t>(count_of(group.rank, from));
        if (count > 0)
            copy(group.rank, from, p.k_cache.bytes, p.v_cache.bytes, pages.kv_heads, sent_.data(), false);
        // To rank r go the pages of its K/V heads, which are adjacent.
        std::vector<Messages::Message> sends, receives;
        std::vector<std::byte *> packed(static_cast<size_t>(group.ranks));
        std::byte *at = received_.data();
        for (int32_t rank = 0; rank < group.ranks; ++rank) {
            const HeadRange theirs = heads_of(group, pages.kv_heads, rank);
            std::byte *const to = sent_.data() + static_cast<size_t>(theirs.first) * count * block;
            packed[static_cast<size_t>(rank)] = rank == group.rank ? to : at;
            if (rank == group.rank) continue;
            if (count > 0) sends.push_back({rank, to, static_cast<size_t>(theirs.count) * count * block});
            const size_t bytes = heads * static_cast<size_t>(count_of(rank, from)) * block;
            if (bytes > 0) receives.push_back({rank, at, bytes});
            at += bytes;
        }
        messages.exchange(sends, receives);
        for (int32_t rank = 0; rank < group.ranks; ++rank)
            if (count_of(rank, from) > 0)
                copy(rank, from, copy_.as<unsigned char>(),
                     copy_.as<unsigned char>() + blocks * heads * pages.k, mine.count,
                     packed[static_cast<size_t>(rank)], true);
    }
}

void DividedAttention::exchange_outputs(Launcher &launcher, Messages &messages, const DividedGroup &group,
                                        const DividedBatch &batch, const AttentionParams &p) const {
    std::vector<OutputPiece> pieces;
    std::vector<size_t> ends(static_cast<size_t>(group.ranks));  // by rank, in floats
    size_t at = 0;
    const auto add = [&](int32_t rank, const DividedBatch::Run &run, int32_t column, int32_t columns) {
        pieces.push_back({rank, run.first, run.count, column, columns, at});
        at += static_cast<size_t>(run.count) * static_cast<size_t>(columns);
    };
    for (int32_t rank = 0; rank < group.ranks; ++rank) {
        if (by_heads(group, p.kv_heads)) {
            const HeadRange range = heads_of(group, p.kv_heads, rank);
            const int32_t values = p.heads / p.kv_heads * p.dim_v;
            for (const DividedBatch::Run &run : batch.runs)
                add(rank, run, range.first * values, range.count * values);
        } else {
            for (const DividedBatch::Run &run : batch.own_runs)
                if (run.rank == rank) add(rank, run, 0, p.heads * p.dim_v);
        }
        ends[static_cast<size_t>(rank)] = at;
    }
    const auto copy = [&](const OutputPiece &piece, bool unpack) {
        CopyParams params{};
        params.copies = 1, params.tokens = piece.tokens;
        float *const packed = received_.as<float>() + piece.at;
        float *const rows = p.out + piece.first_token * p.out_stride + piece.column;
        params.copy[0] = {unpack ? packed : rows,
                          unpack ? rows : packed,
                          unpack ? piece.columns : p.out_stride,
                          unpack ? p.out_stride : piece.columns,
                          0,
                          0,
                          1,
                          piece.columns};
        launcher.run(copy_pieces_kernel(), copy_pieces_blocks(params), 0, params);
    };
    for (const OutputPiece &piece : pieces)
        if (piece.rank == group.rank) copy(piece, false);
    const auto floats = [&](int32_t rank) {
        const size_t first = rank == 0 ? 0 : ends[static_cast<size_t>(rank) - 1];
        return Messages::Message{rank, received_.data() + first * sizeof(float),
                                 (ends[static_cast<size_t>(rank)] - first) * sizeof(float)};
    };
    exchange_with_all(messages, group, floats);
    for (const OutputPiece &piece : pieces)
        if (piece.rank != group.rank) copy(piece, true);
}

}  // namespace runnel::kernels::cuda
