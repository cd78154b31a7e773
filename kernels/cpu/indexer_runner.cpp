#include "kernels/cpu/indexer_runner.h"

#include <algorithm>
#include <array>
#include <bit>

#include "kernels/steps.h"

namespace runnel::kernels::cpu {
namespace {

constexpr int32_t kTurnLists = 16;

// The tokens of a turn.
int32_t turn_tokens(const Indexer &step) {
    return std::max(1, kTurnLists / step.lists());
}

// An integer with the order of the scores; 0 for NaN.
uint32_t order_of(float score) {
    if (score != score) return 0;
    const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);  // -0 becomes 0
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// The count-th largest order, and how many scores of that order are among the `count` largest: found byte by byte
// from the highest on, by counting the orders that have the bytes found so far.
struct Threshold {
    uint32_t order = 0;
    int32_t equal;
};
Threshold threshold_of(std::span<const float> scores, int32_t count) {
    Threshold found{0, count};
    uint32_t known = 0;  // the bits of found.order that are known
    for (int shift = 24; shift >= 0; shift -= 8) {
        std::array<int32_t, 256> counts{};
        for (const float score : scores) {
            const uint32_t order = order_of(score);
            if ((order & known) == found.order) ++counts[order >> shift & 255u];
        }
        uint32_t byte = 255;
        for (; counts[byte] < found.equal; --byte) found.equal -= counts[byte];
        found.order |= byte << shift;
        known |= 255u << shift;
    }
    return found;
}

}  // namespace

void choose_largest(std::span<const float> scores, int32_t count, float *chosen) noexcept {
    float *const end = chosen + count;
    const auto cells = static_cast<int32_t>(scores.size());
    if (cells <= count) {
        for (int32_t cell = 0; cell < cells; ++cell) *chosen++ = static_cast<float>(cell);
    } else {
        Threshold least = threshold_of(scores, count);
        for (int32_t cell = 0; cell < cells; ++cell) {
            const uint32_t order = order_of(scores[static_cast<size_t>(cell)]);
            if (order > least.order || (order == least.order && least.equal-- > 0))
                *chosen++ = static_cast<float>(cell);
        }
    }
    std::fill(chosen, end, -1.0f);
}

void choose_blocks(const Indexer &step, std::span<float> scores, float *chosen) noexcept {
    const auto cells = static_cast<int32_t>(scores.size());
    if (step.pooled && cells > step.all_cells()) {
        const int32_t whole = cells / step.block;
        for (int32_t i = 0; i < whole; ++i)
            scores[static_cast<size_t>(i)] = scores[static_cast<size_t>((i + 1) * step.block - 1)];
        choose_largest(scores.first(static_cast<size_t>(whole)), step.top_k - 1, chosen);
        chosen[step.top_k - 1] = cells % step.block != 0 ? static_cast<float>(whole) : -1.0f;
        return;
    }
    const int32_t count = (cells + step.block - 1) / step.block, local = count > step.top_k ? step.local : 0;
    if (count > step.top_k && step.block > 1)
        for (int32_t i = 0; i < count; ++i) {
            const int32_t first = i * step.block;
            float largest = scores[static_cast<size_t>(first)];
            for (int32_t cell = first + 1; cell < std::min(cells, first + step.block); ++cell) {
                const float score = scores[static_cast<size_t>(cell)];
                if (score > largest || largest != largest) largest = score;
            }
            scores[static_cast<size_t>(i)] = largest;
        }
    choose_largest(scores.first(static_cast<size_t>(count - local)), step.top_k - local, chosen);
    for (int32_t i = 0; i < local; ++i)
        chosen[step.top_k - local + i] = static_cast<float>(count - local + i);
}

size_t IndexerRunner::scratch_bytes(const Indexer &step) {
    return index_scratch(step.head_dim) * sizeof(float);
}

IndexerRunner::IndexerRunner(const Surroundings &surroundings, const CacheConfig &cache) : s_(surroundings) {
    int32_t lists = 0;
    for_each_step<Indexer>(*s_.program, [&](const Indexer &step) {
        const int32_t blocks = cache.blocks[static_cast<size_t>(group(step))];
        cells_ = std::max(cells_, int64_t{blocks} * kBlockTokens);
        lists = std::max(lists, turn_tokens(step) * step.lists());
    });
    scores_ = LazyBuffer(static_cast<size_t>(cells_ * lists) * sizeof(float), "the indexer");
}

// Tokens [first, end) of the batch, of one sequence, that do not choose all cells, and the ranges of their cells.
struct IndexerRunner::Piece {
    int32_t first, end;
    int32_t pages;  // up to the last token's cell
    Piece(const Indexer &step, const SequenceSpan &s, int32_t turn, int32_t turn_end) {
        first = std::max({turn, s.first, s.first + step.all_cells() - s.past});
        end = std::max(first, std::min(turn_end, s.first + s.count));
        pages = (s.past + end - s.first + kBlockTokens - 1) / kBlockTokens;
    }
    int64_t ranges() const { return first == end ? 0 : (pages + kPages - 1) / kPages; }
    static constexpr int32_t kPages = kRangeCells / kBlockTokens;
};

void IndexerRunner::score(const Indexer &step, const SequenceSpan &sequence, const Piece &piece,
                          int64_t range, int32_t turn, int thread) noexcept {
    const int32_t first_page = static_cast<int32_t>(range) * Piece::kPages;
    const IndexTile tile{
        .pages = s_.cache->pages(step, sequence.tables[static_cast<size_t>(group(step))].data()),
        .q = row(step.q, piece.first),
        .weights = step.weights == kNoSlot ? nullptr : row(step.weights, piece.first),
        .scores = scores(step, piece.first, turn),
        .q_stride = width(step.q),
        .weights_stride = step.weights == kNoSlot ? 0 : width(step.weights),
        .scores_stride = cells_,
        .tokens = piece.end - piece.first,
        .heads = step.heads,
        .first_page = first_page,
        .end_page = std::min(first_page + Piece::kPages, piece.pages)};
    s_.kernels->index_scores(tile, s_.scratch[static_cast<size_t>(thread)].as<float>());
}

void IndexerRunner::choose(const Indexer &step, int32_t token, int32_t list, int32_t cell,
                           int32_t turn) noexcept {
    choose_blocks(step, {scores(step, token, turn) + list * cells_, static_cast<size_t>(cell) + 1},
                  row(step.chosen, token) + int64_t{list} * step.top_k);
}

void IndexerRunner::run(const Indexer &step, const Batch &batch, int thread) noexcept {
    const auto tokens = static_cast<int32_t>(batch.tokens.size());
    const int32_t lists = step.lists();
    for (int32_t turn = 0; turn < tokens; turn += turn_tokens(step)) {
        const int32_t end = std::min(tokens, turn + turn_tokens(step));
        int64_t units = 0;
        for (const SequenceSpan &s : batch.sequences) units += Piece(step, s, turn, end).ranges();
        s_.pool->for_each(thread, units, [&](int64_t unit) {
            size_t s = 0;
            for (int64_t ranges; unit >= (ranges = Piece(step, batch.sequences[s], turn, end).ranges()); ++s)
                unit -= ranges;
            score(step, batch.sequences[s], Piece(step, batch.sequences[s], turn, end), unit, turn, thread);
        });
        s_.pool->barrier();
        for (const SequenceSpan &s : batch.sequences)
            for (int32_t t = std::max(turn, s.first); t < std::min(end, s.first + s.count); ++t)
                for (int32_t list = 0; list < lists; ++list)
                    if ((t * lists + list) % s_.pool->threads() == thread)
                        choose(step, t, list, s.past + t - s.first, turn);
        if (end < tokens) s_.pool->barrier();
    }
}

}  // namespace runnel::kernels::cpu
