#include "kernels/cuda/indexer/indexer.h"

#include <cmath>

#include "kernels/cuda/attention/attention_head.h"

namespace runnel::kernels::cuda {

namespace {

DEVICE int smaller(int a, int b) {
    return a < b ? a : b;
}
DEVICE int larger(int a, int b) {
    return a < b ? b : a;
}

// --- queries ---------------------------------------------------------------------------------------------

constexpr int kQueryWarps = 4;

struct QueriesShared {
    float scratch[kQueryWarps][kMostIndexKey];
};

struct IndexQueries {
    using Params = IndexQueriesParams;
    static constexpr const char *kName = "index queries";
    static constexpr int kThreads = 32 * kQueryWarps, kBlocks = 8;

    static DEVICE void run(const Params &p) {
        float *scratch = shared_memory<QueriesShared>().scratch[warp_index()];
        grid_dep_wait();
        grid_dep_trigger();
        const int all = p.tokens * p.heads;
        for (int i = block_index() * kQueryWarps + warp_index(); i < all; i += block_count() * kQueryWarps) {
            const int token = i / p.heads;
            float *x = p.q + token * p.stride + int64_t{i - token * p.heads} * p.dim;
            make_head({nullptr, p.dim, 0, false, p.rope, p.positions[token], 1.0f, true}, x, scratch);
            for (int d = lane_index(); d < p.dim; d += 32) x[d] = scratch[d];
            warp_sync();
        }
    }
};

// --- scores ----------------------------------------------------------------------------------------------

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kTiles = 2;                          // of 16 cells per warp
constexpr int kRangeCells = 16 * kTiles * kWarps;  // of an item
constexpr int kItemTokens = 4;
constexpr int kHeadsAtOnce = 64;
constexpr int kBlocksOf32 = kMostIndexKey / 32;
// Rows of queries in shared memory: 64 bytes more than the values, so that the 16-byte reads of two rows do not conflict.
constexpr int kRowValues = kMostIndexKey + 32;

struct ScoresShared {
    alignas(128) uint16_t q[kHeadsAtOnce * kRowValues];
    float weights[kHeadsAtOnce];
};

// Tokens [token, token + tokens) of a sequence, and cells from `cell` on.
struct Item {
    int sequence, token, tokens, cell;
    int end;  // one past the last token's cell
};

// Item number `index`; false if there are fewer. The items of a range of cells are adjacent. Those of earlier tokens may
// have no cells.
DEVICE bool find_item(const IndexParams &p, int index, Item &item) {
    const int sequences = *p.sequence_count;
    for (int s = 0; s < sequences; ++s) {
        const SequenceInfo info = p.sequences[s];
        // The tokens of the turn that do not choose all cells.
        const int first = larger(p.first, larger(info.first, info.first + p.all_cells - info.past)),
                  end = smaller(p.end, info.first + info.count);
        if (first >= end) continue;
        const int cells = info.past + end - info.first;
        const int groups = (end - first + kItemTokens - 1) / kItemTokens,
                  items = groups * ((cells + kRangeCells - 1) / kRangeCells);
        if (index < items) {
            const int range = index / groups, token = first + (index - range * groups) * kItemTokens;
            const int tokens = smaller(end - token, kItemTokens);
            item = {s, token, tokens, range * kRangeCells, info.past + token + tokens - info.first};
            return true;
        }
        index -= items;
    }
    return false;
}

struct IndexScores {
    using Params = IndexParams;
    static constexpr const char *kName = "index scores";
    static constexpr int kThreads = cuda::kThreads, kBlocks = 2;

    // The fragments of operand A of a warp's cells. With lane = 4 g + t, the 16 bytes [tile][i][b] are the values 32 b + 8 t
    // to 32 b + 8 t + 7 of cell 16 tile + 8 i + g. They serve as columns 2 t, 2 t + 1, 8 + 2 t, 9 + 2 t of two products, and
    // the queries' values are taken in the same order.
    using Keys = uint4[kTiles][2][kBlocksOf32];

    static DEVICE void load_keys(const Params &p, const Item &item, Keys &keys) {
        const int32_t *table = p.tables + item.sequence * p.table_stride;
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            const int first = item.cell + 16 * (warp_index() * kTiles + tile);
            const bool seen = first < item.end;  // 16 cells are in one page
            const unsigned char *page = seen ? page_of(p.keys, 1, table, 0, first) : p.keys.bytes;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int cell = first + 8 * i + (lane_index() >> 2);
                const unsigned char *values = page + cell % kPageCells * p.keys.row_bytes;
#pragma unroll
                for (int b = 0; b < kBlocksOf32; ++b) {
                    const int d = 32 * b + 8 * (lane_index() & 3);
                    keys[tile][i][b] =
                        cell < item.end && d < p.keys.dims ? ld128(values + 2 * d) : uint4{0, 0, 0, 0};
                }
            }
        }
    }

    // Loads heads [head, head + count) of a token's queries and weights, and zeros up to whole groups of 8 heads and 32
    // dimensions.
    static DEVICE void load_queries(const Params &p, int token, int head, int count, ScoresShared &shared) {
        const float *q = p.q + token * p.q_stride + int64_t{head} * p.keys.dims;
        const int dim = p.keys.dims, pieces = (dim + 31) / 32 * 8, rows = (count + 7) / 8 * 8;
        for (int i = thread_index(); i < rows * pieces; i += kThreads) {
            const int row = i / pieces, d = 4 * (i - row * pieces);
            uint4 bits = {0, 0, 0, 0};
            if (row < count && d < dim) bits = ld128(q + row * dim + d);
            st64(shared.q + row * kRowValues + d, uint2{pack_f16(bits_float(bits.x), bits_float(bits.y)),
                                                        pack_f16(bits_float(bits.z), bits_float(bits.w))});
        }
        if (p.weights && thread_index() < rows)
            shared.weights[thread_index()] =
                thread_index() < count ? p.weights[token * p.weights_stride + head + thread_index()] : 0.0f;
    }

    // The products of 8 heads, from `head` on, with the cells of rows g and g + 8 of each tile.
    static DEVICE void multiply(const Params &p, const ScoresShared &shared, const Keys &keys, int head,
                                float (&c)[kTiles][4]) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i) c[tile][i] = 0;
        const int t = lane_index() & 3;
        const uint16_t *row = shared.q + (head + (lane_index() >> 2)) * kRowValues + 8 * t;
#pragma unroll
        for (int b = 0; b < kBlocksOf32; ++b) {
            if (32 * b >= p.keys.dims) break;
            const uint4 q = ld128(row + 32 * b);
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile) {
                const uint4 &low = keys[tile][0][b], &high = keys[tile][1][b];
                mma_f16_k16(c[tile], {low.x, high.x, low.y, high.y}, {q.x, q.y});
                mma_f16_k16(c[tile], {low.z, high.z, low.w, high.w}, {q.z, q.w});
            }
        }
    }

    // Adds the 8 heads to the sums of these cells.
    static DEVICE void add_heads(const ScoresShared &shared, int head, const float (&c)[kTiles][4],
                                 float (&sums)[kTiles][2]) {
        const float *weights = shared.weights + head + 2 * (lane_index() & 3);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                sums[tile][i / 2] =
                    fma_rn(weights[i % 2], c[tile][i] > 0.0f ? c[tile][i] : 0.0f, sums[tile][i / 2]);
    }

    // The cell of rows g + 8 half of a tile.
    static DEVICE int cell_of(const Item &item, int tile, int half) {
        return item.cell + 16 * (warp_index() * kTiles + tile) + 8 * half + (lane_index() >> 2);
    }
    // Stores the 8 heads' products, from head `head` on, as scores of the lists from `scores` on. end: one past the token's
    // own cell.
    static DEVICE void store_heads(const Params &p, const Item &item, int head, int end,
                                   const float (&c)[kTiles][4], float *scores) {
        const int first = head + 2 * (lane_index() & 3);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int cell = cell_of(item, tile, i / 2);
                if (first + i % 2 < p.heads && cell < end)
                    scores[(first + i % 2) * p.scores_stride + cell] = c[tile][i];
            }
    }

    static DEVICE void work(const Params &p, const Item &item, ScoresShared &shared) {
        Keys keys;
        load_keys(p, item, keys);
#pragma unroll 1
        for (int i = 0; i < item.tokens; ++i) {
            float sums[kTiles][2] = {};
            const int end = item.end - item.tokens + 1 + i;  // one past the token's own cell
            float *scores = p.scores + (item.token + i - p.first) * p.lists * p.scores_stride;
#pragma unroll 1
            for (int first = 0; first < p.heads; first += kHeadsAtOnce) {
                const int count = smaller(p.heads - first, kHeadsAtOnce);
                block_sync();
                load_queries(p, item.token + i, first, count, shared);
                block_sync();
#pragma unroll 1
                for (int head = 0; head < count; head += 8) {
                    float c[kTiles][4];
                    multiply(p, shared, keys, head, c);
                    if (p.weights)
                        add_heads(shared, head, c, sums);
                    else
                        store_heads(p, item, first + head, end, c, scores);
                }
            }
            if (!p.weights) continue;
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float sum = sums[tile][half];
                    sum += shfl_xor(sum, 1);
                    sum += shfl_xor(sum, 2);
                    const int cell = cell_of(item, tile, half);
                    if ((lane_index() & 3) == 0 && cell < end) scores[cell] = sum;
                }
        }
    }

    static DEVICE void run(const Params &p) {
        auto &shared = shared_memory<ScoresShared>();
        grid_dep_wait();
        grid_dep_trigger();
        Item item;
        for (int i = block_index(); find_item(p, i, item); i += block_count())
            if (item.cell < item.end) work(p, item, shared);
    }
};

// --- choice ----------------------------------------------------------------------------------------------

constexpr int kChoiceWarps = 16, kChoiceThreads = 32 * kChoiceWarps;
constexpr int kAtOnce = 8;  // scores of a lane, whose loads do not wait for each other

struct ChoiceShared {
    alignas(16) uint32_t histogram[256];
    uint32_t digit, above;
    int more[kChoiceWarps], equal[kChoiceWarps];
};

// An integer with the order of the scores; 0 for NaN.
DEVICE uint32_t order_of(float score) {
    if (score != score) return 0;
    const uint32_t bits = float_bits(score + 0.0f);  // -0 becomes 0
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// Warp collective: calls f(cell, order, exists) for the cells [begin, end), 32 adjacent ones at a time in ascending order;
// the lanes beyond the end get exists = false.
template <class F>
DEVICE void for_scores(const float *scores, int begin, int end, const F &f) {
#pragma unroll 1
    for (int first = begin; first < end; first += 32 * kAtOnce) {
        float score[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const int cell = first + 32 * i + lane_index();
            score[i] = cell < end ? scores[cell] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const int cell = first + 32 * i + lane_index();
            f(cell, order_of(score[i]), cell < end);
        }
    }
}

// Warp collective: counts the lanes' digits. Scores of similar size have the same first digits, so the two that the first
// lanes have are counted for all lanes together.
DEVICE void count_digit(uint32_t *histogram, uint32_t digit, bool counts) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const uint32_t left = ballot(counts);
        const int leader = left != 0 ? 31 - clz(left & (0u - left)) : 0;
        const uint32_t common = shfl(digit, leader);
        const uint32_t same = ballot(counts && digit == common);
        if (lane_index() == leader && same != 0)
            atomic_add_u32(histogram + common, static_cast<uint32_t>(popc(same)));
        counts = counts && digit != common;
    }
    if (counts) atomic_add_u32(histogram + digit, 1);
}

// Warp collective, for one warp: the digit of the `wanted` largest counted ones' last, and how many are above it.
DEVICE void find_digit(ChoiceShared &shared, uint32_t wanted) {
    const int most = 255 - 8 * lane_index();  // a lane's digits: most, most - 1, ...
    uint32_t mine = 0;
    for (int i = 0; i < 8; ++i) mine += shared.histogram[most - i];
    uint32_t upto = mine;
#pragma unroll
    for (int apart = 1; apart < 32; apart *= 2) {
        const uint32_t before = shfl(upto, (lane_index() - apart) & 31);
        if (lane_index() >= apart) upto += before;
    }
    uint32_t above = upto - mine;
    if (above >= wanted || wanted > upto) return;
    int digit = most;
    while (above + shared.histogram[digit] < wanted) above += shared.histogram[digit--];
    shared.digit = static_cast<uint32_t>(digit);
    shared.above = above;
}

// A score of this order.
DEVICE float score_of(uint32_t order) {
    return bits_float((order & 0x80000000u) != 0 ? order ^ 0x80000000u : ~order);
}

struct IndexChoice {
    using Params = IndexParams;
    static constexpr const char *kName = "index choice";
    static constexpr int kThreads = kChoiceThreads, kBlocks = 2;

    // Replaces the scores of cells by those of the blocks. The scores of 512 blocks are written when all threads have read
    // the cells up to theirs, and lie before the cells of the next 512, because a block has at least two cells.
    static DEVICE void take_largest(float *scores, int cells, int block) {
        const int blocks = (cells + block - 1) / block;
#pragma unroll 1
        for (int first = 0; first < blocks; first += kChoiceThreads) {
            uint32_t mine = 0;  // of block first + thread_index()
#pragma unroll 1
            for (int i = 0; i < 32; ++i) {
                const int begin = (first + 32 * warp_index() + i) * block,
                          end = smaller(begin + block, cells);
                uint32_t largest = 0;
                for (int cell = begin + lane_index(); cell < end; cell += 32) {
                    const uint32_t order = order_of(scores[cell]);
                    largest = order > largest ? order : largest;
                }
#pragma unroll
                for (int mask = 16; mask > 0; mask /= 2) {
                    const uint32_t other = shfl_xor(largest, mask);
                    largest = other > largest ? other : largest;
                }
                if (lane_index() == i) mine = largest;
            }
            block_sync();
            if (first + thread_index() < blocks) scores[first + thread_index()] = score_of(mine);
            block_sync();
        }
    }

    // The same, for blocks whose last cell has their score; `blocks` whole ones.
    static DEVICE void take_last(float *scores, int blocks, int block) {
#pragma unroll 1
        for (int first = 0; first < blocks; first += kChoiceThreads) {
            const int i = first + thread_index();
            const float last = i < blocks ? scores[(i + 1) * block - 1] : 0.0f;
            block_sync();
            if (i < blocks) scores[i] = last;
            block_sync();
        }
    }

    // The order of the count-th largest score, and how many scores of that order are among the `count` largest.
    struct Threshold {
        uint32_t order;
        uint32_t equal;
    };
    static DEVICE Threshold find_threshold(ChoiceShared &shared, const float *scores, int begin, int end,
                                           int count) {
        Threshold found{0, static_cast<uint32_t>(count)};
        uint32_t known = 0;  // the bits of found.order that are known
#pragma unroll 1
        for (int shift = 24; shift >= 0; shift -= 8) {
            if (thread_index() < 256) shared.histogram[thread_index()] = 0;
            block_sync();
            for_scores(scores, begin, end, [&](int, uint32_t order, bool exists) {
                count_digit(shared.histogram, order >> shift & 255u,
                            exists && (order & known) == found.order);
            });
            block_sync();
            if (warp_index() == 0) find_digit(shared, found.equal);
            block_sync();
            found.order |= shared.digit << shift;
            found.equal -= shared.above;
            known |= 255u << shift;
        }
        return found;
    }

    // Writes the indices of the `count` largest of the scores.
    static DEVICE void choose(ChoiceShared &shared, const float *scores, int cells, int count,
                              float *chosen) {
        // Each warp has a run of adjacent cells.
        const int run = (cells + kChoiceThreads - 1) / kChoiceThreads * 32;
        const int begin = smaller(cells, warp_index() * run), end = smaller(cells, begin + run);
        const Threshold least = find_threshold(shared, scores, begin, end, count);
        int more = 0, equal = 0;  // of the run
        for_scores(scores, begin, end, [&](int, uint32_t order, bool exists) {
            more += exists && order > least.order;
            equal += exists && order == least.order;
        });
        more = warp_sum(more), equal = warp_sum(equal);
        if (lane_index() == 0) shared.more[warp_index()] = more, shared.equal[warp_index()] = equal;
        block_sync();
        more = equal = 0;  // before the run
        for (int w = 0; w < warp_index(); ++w) more += shared.more[w], equal += shared.equal[w];
        const auto wanted = static_cast<int>(least.equal);
        const uint32_t lower_lanes = (1u << lane_index()) - 1;
        for_scores(scores, begin, end, [&](int cell, uint32_t order, bool exists) {
            const bool is_more = exists && order > least.order, is_equal = exists && order == least.order;
            const uint32_t all_more = ballot(is_more), all_equal = ballot(is_equal);
            const int more_before = more + popc(all_more & lower_lanes),
                      equal_before = equal + popc(all_equal & lower_lanes);
            if (is_more || (is_equal && equal_before < wanted))
                chosen[more_before + smaller(equal_before, wanted)] = static_cast<float>(cell);
            more += popc(all_more), equal += popc(all_equal);
        });
        block_sync();
    }

    static DEVICE void run(const Params &p) {
        auto &shared = shared_memory<ChoiceShared>();
        grid_dep_wait();
        grid_dep_trigger();
        const int lists = (p.end - p.first) * p.lists;
        for (int index = block_index(); index < lists; index += block_count()) {
            const int i = index / p.lists, token = p.first + i;
            int s = 0;
            while (token >= p.sequences[s].first + p.sequences[s].count) ++s;
            const int cells = p.sequences[s].past + token - p.sequences[s].first + 1,
                      blocks = (cells + p.block - 1) / p.block;
            float *chosen = p.chosen + token * p.chosen_stride + (index - i * p.lists) * p.top_k;
            if (cells > p.all_cells) {
                float *scores = p.scores + index * p.scores_stride;
                if (p.pooled)
                    take_last(scores, cells / p.block, p.block);
                else if (p.block > 1)
                    take_largest(scores, cells, p.block);
                // Blocks that are compared, and how many of them are chosen; then those that always are.
                const int others = p.pooled ? cells / p.block : blocks - p.local,
                          count = p.top_k - (p.pooled ? 1 : p.local);
                if (count > 0) choose(shared, scores, others, count, chosen);
                for (int n = thread_index(); count + n < p.top_k; n += kThreads)
                    chosen[count + n] = others + n < blocks ? static_cast<float>(others + n) : -1.0f;
                continue;
            }
            for (int n = thread_index(); n < p.top_k; n += kThreads)
                chosen[n] = n < blocks ? static_cast<float>(n) : -1.0f;
        }
    }
};

}  // namespace

Kernel<IndexQueriesParams> index_queries_kernel() {
    return kernel_of<IndexQueries>();
}
size_t index_queries_shared() {
    return sizeof(QueriesShared);
}
Kernel<IndexParams> index_scores_kernel() {
    return kernel_of<IndexScores>();
}
size_t index_scores_shared() {
    return sizeof(ScoresShared);
}
Kernel<IndexParams> index_choice_kernel() {
    return kernel_of<IndexChoice>();
}
size_t index_choice_shared() {
    return sizeof(ChoiceShared);
}

}  // namespace runnel::kernels::cuda
