// The input of a launch, copied into the shared memory of each block, for linear_body.h.
//
// A warp reads activations between loads of weights that take a memory latency each. From global memory such a read is a hit in
// L1, but probably one that waits for the misses of all warps of the multiprocessor before it: on an H200 a third of the samples
// of Q8_0 stood at such reads (tests/gpu/PREDICTIONS.md). Shared memory answers in some 30 clocks, whatever else is under way.
// staged_layout.h has its layout.
#pragma once

#include "kernels/cuda/linear/linear_order.h"
#include "kernels/cuda/linear/quantize_row.h"
#include "kernels/cuda/linear/staged_layout.h"
#include "kernels/cuda/linear/weight_bytes.h"

namespace runnel::kernels::cuda {

// The copy of a block. kGrouped: of LinearParams::x_rows rows, with groups; else of its `tokens` rows.
template <TileFormat F, bool kGrouped>
struct StagedInput {
    static constexpr StagedPiece kPiece = staged_piece(F);
    static constexpr float kUnit = 1.0f / sum_unit(F);  // a block's sums are too large by sum_unit()

    const LinearParams &p;
    std::byte *copy;

    DEVICE int32_t rows() const { return kGrouped ? p.x_rows : p.tokens; }
    DEVICE int32_t row_bytes() const { return staged_row_bytes(F, p.cols); }
    // The groups, then the rows that they read.
    DEVICE std::byte *lists() const { return copy + rows() * row_bytes(); }

    // Block: copies everything. groups: groups_of().
    DEVICE void fill(int32_t groups) const {
        const int32_t blocks = col_blocks32(p.cols), warps = block_threads() / 32;
        int32_t row = 0, block = warp_index();
#pragma unroll 1
        for (std::byte *to = copy + block * kPiece.bytes;; to += warps * kPiece.bytes, block += warps) {
            for (; block >= blocks; block -= blocks) ++row;
            if (row >= rows()) break;
            fill_piece(row, block, to);
        }
        cp_async_commit();
        // Loads and stores, of which a thread has few: they wait for memory together.
#pragma unroll 1
        for (int32_t i = thread_index(); i < rows() * blocks; i += block_threads()) {
            const Activations &x = p.x;
            const int32_t of = i / blocks;
            *reinterpret_cast<float *>(copy + i * kPiece.bytes + kPiece.scale) =
                is_half(F) ? x.half_scales[of] : x.scales[of * x.scales_stride + i - of * blocks] * kUnit;
        }
        if constexpr (kGrouped) {
            auto *const to = reinterpret_cast<TokenGroup *>(lists());
            auto *const sources = reinterpret_cast<int32_t *>(to + p.tokens);
#pragma unroll 1
            for (int32_t i = thread_index(); i < p.tokens; i += block_threads()) {
                if (i < groups) to[i] = p.groups[i];
                if (p.sources) sources[i] = p.sources[i];
            }
        }
        cp_async_wait<0>();
        block_sync();
    }

    // Block: makes the copy from rows in float32 (LinearParams::prepare_input): every block normalizes and quantizes them all.
    DEVICE void make(QuantizeShared &scratch) const {
        const QuantizeParams &q = p.prepare_input;
#pragma unroll 1
        for (int32_t row = 0; row < rows(); ++row) {
            prepare_row(q, row, scratch, is_half(F), [&](int group, const float(&v)[8], HalfScale halves) {
                make_piece(copy + row * row_bytes() + group * kPiece.bytes, v, halves);
            });
            block_sync();
        }
    }

    // After fill() or make(): a group, and the row of the input that row `row` of the groups reads.
    DEVICE TokenGroup group_at(int32_t index) const {
        const uint32_t at = shared_address(lists()) +
                            static_cast<uint32_t>(sizeof(TokenGroup)) * static_cast<uint32_t>(index);
        return {static_cast<int32_t>(lds32(at)), static_cast<int32_t>(lds32(at + 4)),
                static_cast<int32_t>(lds32(at + 8))};
    }
    DEVICE int32_t source(int32_t row) const {
        if (!kGrouped || !p.sources) return row;
        const int32_t at = static_cast<int32_t>(sizeof(TokenGroup)) * p.tokens + 4 * row;
        return static_cast<int32_t>(lds32(shared_address(lists()) + static_cast<uint32_t>(at)));
    }

  private:
    // Warp: stores the values of a block of 256 columns.
    DEVICE void make_piece(std::byte *to, const float (&v)[8], HalfScale halves) const {
        const int lane = lane_index(), t = lane >> 1 & 3, of_32 = activation_first(lane) / 32;
        std::byte *const values = to + 64 * of_32;
        auto *const scale = reinterpret_cast<float *>(to + kPiece.scale);
        if constexpr (is_half(F)) {
            st128(values + 16 * t, halves_of(v, halves.inverse));
            if (lane == 0) *scale = halves.scale;
        } else {
            const ActivationPiece piece = quantize_group(v);
            const ActivationDigits digits(piece.q);
            st64(values + 8 * t, digits.high);
            st64(values + 32 + 8 * t, digits.low);
            if (lane == 0) *scale = piece.scale * kUnit;
            if constexpr (has_minimum(F))
                if (t == 0)
                    store_sums<has_groups_of_16(F)>(reinterpret_cast<uint16_t *>(to + kPiece.sums), of_32,
                                                    piece);
        }
    }

    // Warp: starts the copy of block `block` of a row, but for its scale.
    DEVICE void fill_piece(int32_t row, int32_t block, std::byte *to) const {
        constexpr int32_t kLane = 16 / sizeof(uint16_t);  // values that a lane copies
        const Activations &x = p.x;
        const int64_t stride = is_half(F) ? x.halves_stride : x.codes_stride;
        const int32_t lane = lane_index(), column = kTileCols * block + kLane * lane;
        const auto *const values = is_half(F) ? reinterpret_cast<const std::byte *>(x.halves)
                                              : reinterpret_cast<const std::byte *>(x.digits);
        if (column < stride) cp_async16(to + 16 * lane, values + 2 * (row * stride + column));
        if constexpr (has_minimum(F)) {
            constexpr int32_t kNumbers = (kPiece.scale - kPiece.sums) / 2;
            const uint16_t *sums =
                has_groups_of_16(F) ? x.sums16 + row * x.sums16_stride : x.sums + row * x.sums_stride;
            if (lane < kNumbers / kLane)
                cp_async16(to + kPiece.sums + 16 * lane, sums + kNumbers * block + kLane * lane);
        }
    }
};

// A lane's view of the copy: the counterpart of LaneActivations (linear_range.h) for up to eight tokens.
template <TileFormat F, int kGroups>
struct StagedLane {
    static constexpr bool kStaged = true, kBytes = !is_half(F);
    static constexpr int kProducts = Columns<kBytes>::products(kGroups);
    static constexpr StagedPiece kPiece = staged_piece(F);
    // Shared addresses: of the lane's part of the columns that it loads, and of the rows of the tokens that its sums belong to.
    uint32_t column[kProducts], own[kGroups];

    template <bool kGrouped>
    DEVICE StagedLane(const StagedInput<F, kGrouped> &input, TokenGroup group) {
        const int g = lane_index() >> 2, t = lane_index() & 3;
        const uint32_t copy = shared_address(input.copy);
        const auto row_of = [&](int token) {
            return copy +
                   static_cast<uint32_t>(input.source(group.first + (token < group.count ? token : 0)) *
                                         input.row_bytes());
        };
#pragma unroll
        for (int m = 0; m < kProducts; ++m) column[m] = row_of(Columns<kBytes>::token(m, g)) + lane_offset();
#pragma unroll
        for (int j = 0; j < kGroups; ++j) own[j] = row_of(kSmallGroupTokens * j + t);
    }
    // The operands B of 32 columns.
    DEVICE uint2 digits(int m, int32_t block, int group) const {
        return lds64(at(column[m], block, 64 * group));
    }
    DEVICE float scale(int j, int32_t block) const {
        return bits_float(lds32(at(own[j], block, kPiece.scale)));
    }
    // The sums (activations.h) of a chunk's two groups of 32, of the lane's token: x has the first parts, y the second.
    DEVICE uint2 parts(int j, int32_t block, int chunk) const {
        const int32_t first = kPiece.sums + 4 * chunk;
        return {lds32(at(own[j], block, first)), lds32(at(own[j], block, first + 16))};
    }
    // Operand B of minimum_sums() for a block: part kPart of the sums of groups k, k + 1, k = 8 kHalf + 2t.
    template <int kPart, int kHalf>
    DEVICE uint32_t sums(int m, int32_t block) const {
        constexpr int32_t kParts = has_groups_of_16(F) ? 16 : 8;
        return lds32(at(column[m], block, kPiece.sums + 2 * (kPart * kParts + 8 * kHalf)) +
                     4 * static_cast<uint32_t>(lane_index() & 3) - lane_offset());
    }
    // Of F16 and BF16: 32 columns of a chunk, and the row's scale.
    DEVICE uint4 load_halves(int m, int32_t chunk, int half) const {
        return lds128(at(column[m], chunk / 4, 64 * (2 * (chunk % 4) + half)));
    }
    DEVICE float half_scale(int j) const {
        return scale(j, 0);
    }

  private:
    // Of the lane's part of 32 columns.
    static DEVICE uint32_t lane_offset() {
        const auto lane = static_cast<uint32_t>(lane_index());
        return is_half(F) ? 16 * (lane & 3) : 8 * (lane & 3) + 8 * (lane & 4);
    }
    static DEVICE uint32_t at(uint32_t row, int32_t block, int32_t offset) {
        return row + static_cast<uint32_t>(block * kPiece.bytes + offset);
    }
};

}  // namespace runnel::kernels::cuda
