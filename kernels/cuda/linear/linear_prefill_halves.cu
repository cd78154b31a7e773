// y = W x for many tokens with weights in F16 and BF16: see linear_prefill.h.
//
// A block of 8 warps computes 8 row tiles x 128 tokens: warp (i, j) the row tiles 2i and 2i + 1 and the
// tokens 64j .. 64j + 63, so that with a gate a lane holds gate and up of its outputs. Per 32 columns 8
// KB of weights and 8 KB of activations arrive by cp.async, three stages ahead (on sm_75 one, through
// registers). Both are stored in the tensor cores' order, so a warp needs 12 loads of 16 bytes for 32
// mma and no other arithmetic.
//
// Bytes: from L2 64 per 128 outputs and column; from shared memory 6 KB per warp for 32 mma of 16 x 8 x 16.
// Shared memory bounds the kernel on sm_90: its 128 bytes per clock allow 78% of the rate of mma.sync
// (estimated; tests/gpu/PREDICTIONS.md).
#include "kernels/cuda/linear/halves.h"
#include "kernels/cuda/linear/linear_order.h"
#include "kernels/cuda/linear/linear_prefill.h"

namespace runnel::kernels::cuda {

namespace {

constexpr int kWarps = 8, kTokens = kPrefillHalfTokens, kStageCols = 32;
constexpr int kPieces = kStageCols / 8;       // 16-byte pieces of a token's stage
constexpr int kWarpTokens = kTokens / 2;      // per warp
constexpr int kWarpGroups = kWarpTokens / 8;  // 8-column groups per warp

template <bool kTuring>
struct HalvesShared {
    static constexpr int kStages = kTuring ? 2 : 4;
    uint4 weights[kStages][kPrefillHalfTiles][2][32];  // [16 columns][lane]
    uint4 x[kStages][kTokens][kPieces];
    float scale[kTokens];
    TileAt tiles[kPrefillHalfTiles];  // of the unit
};

template <TileFormat F, bool kTuring>
struct LinearPrefillHalvesBody {
    using Params = PrefillParams;
    using Shared = HalvesShared<kTuring>;
    static_assert(sizeof(Shared) <= (kTuring ? 64 : 99) << 10);
    static constexpr int kStages = Shared::kStages, kPasses = kTokens * kPieces / (32 * kWarps);

    // What a thread copies into shared memory.
    struct Loader {
        const std::byte *tile;          // of this warp, or null
        const uint16_t *from[kPasses];  // the pieces of activations, of columns 0 to 31; null: no token
        const uint16_t *any;            // a valid address, for missing tokens

        DEVICE Loader(const LinearParams &p, TokenGroup group, const std::byte *own)
            : tile(own), any(p.x.halves) {
#pragma unroll
            for (int i = 0; i < kPasses; ++i) {
                const int token = thread_index() / kPieces + i * (32 * kWarps / kPieces);
                from[i] = token < group.count ? p.x.halves + source_row(p, group, token) * p.x.halves_stride +
                                                    8 * (thread_index() % kPieces)
                                              : nullptr;
            }
        }
        // Copies columns 32 * stage .. 32 * stage + 31.
        DEVICE void copy(Shared &shared, int32_t stage) const {
            const int slot = stage % kStages, lane = lane_index();
            if (tile != nullptr) {
                const std::byte *first = half_chunk<F>(tile, stage / 2) + stage % 2 * 1024 + 16 * lane;
                cp_async16(&shared.weights[slot][warp_index()][0][lane], first);
                cp_async16(&shared.weights[slot][warp_index()][1][lane], first + 512);
            }
#pragma unroll
            for (int i = 0; i < kPasses; ++i) {
                const bool there = from[i] != nullptr;
                cp_async16(&shared.x[slot][thread_index() / kPieces + i * (32 * kWarps / kPieces)]
                                    [thread_index() % kPieces],
                           there ? from[i] + kStageCols * stage : any, there);
            }
        }
    };

    // A lane's sums for 32 rows x 64 tokens: [tile][group of 8 tokens][C of mma_f16_k16].
    struct Sums {
        float range[2][kWarpGroups][4], all[2][kWarpGroups][4];
    };

    static DEVICE void multiply_stage(const Shared &shared, int slot, int first_tile, int first_token,
                                      Sums &sums) {
        uint4 a[2][2];  // [tile][16 columns]
#pragma unroll
        for (int tile = 0; tile < 2; ++tile)
#pragma unroll
            for (int step = 0; step < 2; ++step)
                a[tile][step] = ld128(&shared.weights[slot][first_tile + tile][step][lane_index()]);
#pragma unroll
        for (int j = 0; j < kWarpGroups; ++j) {
            // Lane 4g + t reads piece t of token g: 512 adjacent bytes for the warp.
            const uint4 b = ld128(&shared.x[slot][first_token + 8 * j][0] + lane_index());
#pragma unroll
            for (int tile = 0; tile < 2; ++tile) {
                const uint4(&w)[2] = a[tile];
                mma_f16_k16(sums.range[tile][j], {w[0].x, w[0].y, w[0].z, w[0].w}, {b.x, b.y});
                mma_f16_k16(sums.range[tile][j], {w[1].x, w[1].y, w[1].z, w[1].w}, {b.z, b.w});
            }
        }
    }

    // At the end of a range of blocks: adds its scaled sums to sums.all, which the first range starts.
    static DEVICE void finish_range(const Shared &shared, int first_token, bool first,
                                    const uint32_t (&exponents)[2], Sums &sums) {
        const int t = lane_index() & 3;
#pragma unroll
        for (int j = 0; j < kWarpGroups; ++j)
#pragma unroll
            for (int column = 0; column < 2; ++column) {
                const float scale = shared.scale[first_token + 8 * j + 2 * t + column];
#pragma unroll
                for (int tile = 0; tile < 2; ++tile)
#pragma unroll
                    for (int r = 0; r < 2; ++r) {
                        float &range = sums.range[tile][j][2 * r + column],
                              &all = sums.all[tile][j][2 * r + column];
                        const float sum = scaled_sum<F>(range, exponents[tile], r, scale);
                        all = first ? sum : all + sum;
                        range = 0;
                    }
            }
    }

    static DEVICE void write_outputs(const LinearParams &p, const TileAt *tiles, TokenGroup group,
                                     int first_token, const Sums &sums) {
        const int g = lane_index() >> 2, t = lane_index() & 3;
        const bool gate = p.gate != LinearGate::None;
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
            if (tiles[tile].matrix < 0 || (gate && tile == 1)) continue;
#pragma unroll
            for (int j = 0; j < kWarpGroups; ++j)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int token = first_token + 8 * j + 2 * t + i % 2;
                    const int32_t row = tiles[tile].tile * kTileRows + g + i / 2 * 8;
                    if (token < group.count && row < p.matrix[tiles[tile].matrix].rows)
                        write_output(p, tiles[tile], group, token, row, sums.all[tile][j][i],
                                     sums.all[1][j][i]);
                }
        }
    }

    static DEVICE const std::byte *bytes_of(const LinearParams &p, TileAt tile, int32_t expert) {
        return tile.matrix < 0 ? nullptr : tile_bytes(p, F, tile.matrix, tile.tile, expert);
    }

    // Multiplies the eight row tiles of a unit by the tokens of a group.
    static DEVICE void multiply(const LinearParams &p, Shared &shared, int32_t unit, TokenGroup group) {
        const int warp = warp_index(), first_tile = warp / 2 * 2, first_token = warp % 2 * kWarpTokens;
        // A missing second tile of a pair is replaced by the first; its results are dropped.
        const auto tile_or_first = [&](int slot) {
            const TileAt at = tile_at<kPrefillHalfTiles>(p, unit, slot);
            return at.matrix < 0 && slot % 2 == 1 ? tile_at<kPrefillHalfTiles>(p, unit, slot - 1) : at;
        };
        const Loader loader(p, group, bytes_of(p, tile_or_first(warp), group.expert));
        if (lane_index() == 0) shared.tiles[warp] = tile_at<kPrefillHalfTiles>(p, unit, warp);
        if (thread_index() < group.count)
            shared.scale[thread_index()] = p.x.half_scales[source_row(p, group, thread_index())];
        else if (thread_index() < kTokens)
            shared.scale[thread_index()] = 0;
        const bool busy =
            first_token < group.count && tile_at<kPrefillHalfTiles>(p, unit, first_tile).matrix >= 0;
        uint32_t exponents[2] = {};
        if (busy)
            for (int i = 0; i < 2; ++i)
                exponents[i] = row_exponents<F>(bytes_of(p, tile_or_first(first_tile + i), group.expert));
        const auto blocks = static_cast<int32_t>(col_blocks(p.cols)),
                   stages = 2 * static_cast<int32_t>(col_chunks(p.cols));
        const int ranges = column_ranges(blocks);
        for (int32_t stage = 0; stage < kStages - 1; ++stage) {
            if (stage < stages) loader.copy(shared, stage);
            cp_async_commit();
        }
        Sums sums{};
        int range = 0;
        for (int32_t stage = 0; stage < stages; ++stage) {
            cp_async_wait<kStages - 2>();
            block_sync();  // all copies have arrived, and the previous stage is no longer read
            if (stage + kStages - 1 < stages) loader.copy(shared, stage + kStages - 1);
            cp_async_commit();
            if (!busy) continue;
            multiply_stage(shared, stage % kStages, first_tile, first_token, sums);
            if (stage + 1 == stages || stage + 1 == 8 * range_of(blocks, ranges, range).end)
                finish_range(shared, first_token, range++ == 0, exponents, sums);
        }
        cp_async_wait<0>();
        if (busy) write_outputs(p, &shared.tiles[first_tile], group, first_token, sums);
        block_sync();  // shared memory is free for the next unit
    }

    static DEVICE void run(const Params &params) {
        auto &shared = shared_memory<Shared>();
        const LinearParams &p = params.linear;
        grid_dep_wait();
        const int32_t groups = groups_of(p, kTokens), tiles = tiles_of_unit<kPrefillHalfTiles>(p);
        const int32_t units = (tiles_of(p) + tiles - 1) / tiles * groups;
        // Units that share weights are adjacent.
        for (int32_t unit = block_index(); unit < units; unit += block_count())
            multiply(p, shared, unit / groups, group_at(p, kTokens, unit % groups));
        grid_dep_trigger();
    }
};

template <TileFormat F>
struct LinearPrefillHalves {
    using Params = PrefillParams;
    static constexpr const char *kName = "linear_prefill_halves";
    static constexpr int kThreads = 32 * kWarps, kBlocks = 1;

    static DEVICE void run(const Params &params) {
        run_for_device<LinearPrefillHalvesBody<F, false>, LinearPrefillHalvesBody<F, true>>(params);
    }
};

}  // namespace

Kernel<PrefillParams> linear_prefill_halves_kernel(TileFormat format) {
    if (format == TileFormat::F16) return kernel_of<LinearPrefillHalves<TileFormat::F16>>();
    return kernel_of<LinearPrefillHalves<TileFormat::BF16>>();
}

SharedBytes linear_prefill_halves_shared() {
    return {sizeof(HalvesShared<false>), sizeof(HalvesShared<true>)};
}

}  // namespace runnel::kernels::cuda
