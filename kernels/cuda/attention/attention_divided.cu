// For a cache that several devices divide (divided_attention.h): joins the splits of a row that they have computed, and
// copies pages into runs of bytes that they send to each other.
//
// Join: a warp takes 128 columns of a row. Its lanes first read the places, maxima and sums of 32 splits, so that only
// arithmetic is left in the chain from split to split. Bytes: 4 (dim_v + 2) per row and split.
// Copy: a warp copies 2 KB at a time, 16 bytes per lane and load.
#include "kernels/cuda/attention/attention_tile.h"

namespace runnel::kernels::cuda {

namespace {

constexpr int kDividedWarps = 4;

struct AttentionJoin {
    using Params = AttentionParams;
    static constexpr const char *kName = "attention join";
    static constexpr int kThreads = 32 * kDividedWarps, kBlocks = 4;
    static constexpr int kColumns = 128, kOfLane = kColumns / 32;

    // One row of a K/V head of a sequence, columns [first, first + kColumns).
    static DEVICE void join_row(const Params &p, const DividedSequence &sequence, const RowSpace &space,
                                int row, int first) {
        const int64_t stride = p.dim_v + 2, in_split = int64_t{space.cache.kv_head} * space.rows + row;
        const auto rows_at = [&](int place) {
            return p.partial + (int64_t{place} * p.heads + in_split) * stride;
        };
        const int32_t *places = p.places + sequence.first;
        float m = 0, l = 0, o[kOfLane] = {};
#pragma unroll 1
        for (int start = 0; start < sequence.splits; start += 32) {
            const int count = smaller(sequence.splits - start, 32);
            const int place = lane_index() < count ? places[start + lane_index()] : 0;
            float m_of = 0, l_of = 0;
            if (lane_index() < count) {
                const float *part = rows_at(place);
                m_of = part[0], l_of = part[1];
            }
#pragma unroll 4
            for (int i = 0; i < count; ++i) {
                const float *part = rows_at(shfl(place, i)) + 2;
                const float m_here = shfl(m_of, i), l_here = shfl(l_of, i);
                const bool begins = start + i == 0;
                const Join weight = begins ? Join{m_here, 0, 1} : join(m, m_here);
                m = weight.m;
                l = begins ? l_here : fma_rn(l, weight.a, l_here * weight.b);
#pragma unroll
                for (int j = 0; j < kOfLane; ++j) {
                    const int d = first + lane_index() + 32 * j;
                    const float here = d < p.dim_v ? part[d] : 0.0f;
                    o[j] = begins ? here : fma_rn(o[j], weight.a, here * weight.b);
                }
            }
        }
        const float factor = final_factor(p, space.head(row), m, l);
        float *out = output_of(p, space, row);
#pragma unroll
        for (int j = 0; j < kOfLane; ++j) {
            const int d = first + lane_index() + 32 * j;
            if (d < p.dim_v) out[d] = o[j] * factor;
        }
    }

    static DEVICE void run(const Params &p) {
        grid_dep_wait();
        grid_dep_trigger();
        const int chunks = (p.dim_v + kColumns - 1) / kColumns;
        const int64_t all = int64_t{p.divided_sequences} * p.kv_heads * p.most_rows * chunks;
        for (int64_t i = block_index() * kDividedWarps + warp_index(); i < all;
             i += block_count() * kDividedWarps) {
            const int chunk = static_cast<int>(i % chunks), row = static_cast<int>(i / chunks % p.most_rows);
            const auto head = static_cast<int>(i / chunks / p.most_rows);
            const DividedSequence sequence = p.divided[head / p.kv_heads];
            const RowSpace space = row_space(p, sequence.sequence, head % p.kv_heads);
            if (row < space.rows) join_row(p, sequence, space, row, chunk * kColumns);
        }
    }
};

struct CopyPages {
    using Params = CopyPagesParams;
    static constexpr const char *kName = "copy pages";
    static constexpr int kThreads = 32 * kDividedWarps, kBlocks = 8;
    static constexpr int kLoads = 4, kAtOnce = kLoads * 32 * 16;  // bytes of a warp

    static DEVICE void run(const Params &p) {
        grid_dep_wait();
        grid_dep_trigger();
        const int64_t bytes = p.k_page + p.v_page;
        const int parts = static_cast<int>((bytes + kAtOnce - 1) / kAtOnce);
        const int64_t all = int64_t{p.count} * p.heads * parts;
        for (int64_t i = block_index() * kDividedWarps + warp_index(); i < all;
             i += block_count() * kDividedWarps) {
            const int64_t page = i / parts;  // among the packed ones
            const int64_t at = int64_t{p.blocks[page % p.count]} * p.heads + page / p.count;
            unsigned char *packed = p.packed + page * bytes;
            unsigned char *k = p.k + at * p.k_page, *v = p.v + at * p.v_page - p.k_page;
            const int64_t first = i % parts * kAtOnce + 16 * lane_index();
            const auto place = [&](int64_t byte) { return (byte < p.k_page ? k : v) + byte; };
            uint4 some[kLoads];
#pragma unroll
            for (int n = 0; n < kLoads; ++n) {
                const int64_t byte = first + 512 * n;
                some[n] = {0, 0, 0, 0};
                if (byte < bytes) some[n] = ld128(p.unpack ? packed + byte : place(byte));
            }
#pragma unroll
            for (int n = 0; n < kLoads; ++n) {
                const int64_t byte = first + 512 * n;
                if (byte < bytes) st128(p.unpack ? place(byte) : packed + byte, some[n]);
            }
        }
    }
};

}  // namespace

Kernel<AttentionParams> attention_join_kernel() {
    return kernel_of<AttentionJoin>();
}

int64_t attention_join_blocks(const AttentionParams &p) {
    const int64_t rows = int64_t{p.divided_sequences} * p.kv_heads * p.most_rows,
                  chunks = (p.dim_v + AttentionJoin::kColumns - 1) / AttentionJoin::kColumns;
    return (rows * chunks + kDividedWarps - 1) / kDividedWarps;
}

Kernel<CopyPagesParams> copy_pages_kernel() {
    return kernel_of<CopyPages>();
}

int64_t copy_pages_blocks(const CopyPagesParams &p) {
    const int64_t parts = (p.k_page + p.v_page + CopyPages::kAtOnce - 1) / CopyPages::kAtOnce;
    return (int64_t{p.count} * p.heads * parts + kDividedWarps - 1) / kDividedWarps;
}

}  // namespace runnel::kernels::cuda
