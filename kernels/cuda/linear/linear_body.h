// The kernels of linear.h, for linear.cu and linear_codebooks.cu: y = W x for up to 16 tokens at a time;
// linear.h holds the order of every operation.
//
// A block of 8 warps forms 8 / W teams of W warps. A team takes one tile of 16 rows at a
// time (assigned by block index, a persistent grid), each of its warps a range of blocks (linear_range.h);
// partial sums go to shared memory, and one thread per output adds them in order and writes the result. There is
// one barrier for several tiles (kSlots), so that warps seldom wait for each other.
//
// The input of the next launch can be quantized here (LinearParams::prepare), by the block that happens to
// complete it. This saves a launch and the gap before it, about 1.3 us inside a graph on an H100. A block
// counts its tiles after it has done them all, so the loop is unaffected and no block waits for
// another. A norm needs whole rows: one block would do it while all others wait, so the launches that read its result do it
// at their start instead, every block for itself (LinearParams::prepare_input).
//
// Bytes: each weight once, 16 bytes per lane and load; activations 2 n per column and multiprocessor, or, where they are
// copied into shared memory (staged_activations.h), per block; outputs 4 n per row.
#pragma once

#include <type_traits>

#include "kernels/cuda/linear/linear_range.h"
#include "kernels/cuda/linear/quantize_row.h"
#include "kernels/cuda/runtime/arrival.h"
#include "kernels/cuda/runtime/math.h"
#include "kernels/cuda/runtime/parameters.h"

namespace runnel::kernels::cuda {

namespace {

constexpr int kWarps = kLinearThreads / 32;
constexpr int kGroupTiles = kActivationGroup / kTileRows;  // row tiles of a group of 256 outputs

// The tiles of a team between two barriers of the block. With a barrier after each tile, warps of an H200 waited there a
// fifth of their time (Q4_K, gate and up of 8B). Four slots of up to four tokens take 16 KB. Kernels that would spill a
// register have one slot. (Those of Q6_K have most of their weights in matrices with a tile per block.)
constexpr int slots_of(TileFormat format, int groups, bool grouped, bool staged) {
    const bool one =
        groups == 1 && (format == TileFormat::Q6_K || format == TileFormat::IQ4_XS ||
                        (!grouped && (format == TileFormat::Q5_1 || format == TileFormat::Q2_K)));
    const bool grouped_one =
        groups == 1 && grouped && format == (staged ? TileFormat::Q5_K : TileFormat::Q4_K);
    return one || grouped_one ? 1 : 4 / groups;
}

template <int kGroups, int kSlots>
struct LinearShared {
    // Of a slot: [0]: the gate or the only matrix, [1]: up
    float partial[kSlots][2][kWarps][kGroupTokens * kGroups][kTileRows];
    // For LinearParams::prepare: the groups of 256 outputs that the team's tiles completed.
    int32_t complete[kWarps][32], complete_count[kWarps];
    QuantizeShared quantize;
};

template <int kGroups, int kSlots, int kWords>
struct LinearBookShared : LinearShared<kGroups, kSlots> {
    uint32_t book[kWords];
};

// Where the copies of activations begin, after the struct.
template <class Shared>
inline constexpr size_t kStagedAt = (sizeof(Shared) + 15) / 16 * 16;

// A team's unit and, if there are several, the slot of its sums, packed into one register, because none is to spare.
template <bool kHasSlots>
struct Place {
    static constexpr int32_t kSlot = 1 << 28;  // more than the units of a launch
    int32_t packed;

    DEVICE int32_t unit() const { return kHasSlots ? packed & (kSlot - 1) : packed; }
    DEVICE int slot() const { return kHasSlots ? packed / kSlot : 0; }
    DEVICE void advance(int32_t step) { packed += kHasSlots ? step + kSlot : step; }
};

// A tile of rows of one matrix, and its tokens.
struct Unit {
    int matrix;
    int32_t tile;
    TokenGroup group;
};

// Units that share weights are adjacent. groups: groups_of(), or 1 without groups. group_of(i): group number i.
// kStaged: unrolled, so that no step waits for the rows of a matrix. (The other kernels lack the registers for it.)
template <bool kGrouped, bool kStaged, class GroupOf>
DEVICE Unit unit_of(const LinearParams &p, int32_t groups, int32_t unit, const GroupOf &group_of) {
    int32_t tile = kGrouped ? unit / groups : unit;
    const TokenGroup group = kGrouped ? group_of(unit % groups) : TokenGroup{0, 0, p.tokens};
    int matrix = 0;
    if constexpr (kStaged) {
#pragma unroll
        for (int i = 0; i + 1 < kLinearMatrices; ++i)
            if (const int32_t tiles = row_tiles32(p.matrix[i].rows);
                p.gate == LinearGate::None && matrix == i && tile >= tiles)
                tile -= tiles, ++matrix;
    } else {
        while (p.gate == LinearGate::None && tile >= row_tiles(p.matrix[matrix].rows))
            tile -= static_cast<int32_t>(row_tiles(p.matrix[matrix++].rows));
    }
    return {matrix, tile, group};
}

// Two blocks of 256 threads leave 128 registers to each thread, too few to unpack scales while
// keeping several products.
constexpr int blocks_per_multiprocessor(TileFormat format, int groups, bool grouped, bool staged) {
    if (is_half(format)) return 2;
    if (multiplies_bytes(format, groups, grouped, staged)) {
        const bool wide = !has_group_floats(format) || format == TileFormat::Q5_1;
        return groups == 2 && !staged && wide ? 1 : 2;
    }
    if (groups == 1) {
        const bool wide = format == TileFormat::IQ4_XS || format == TileFormat::Q5_K ||
                          (has_groups_of_16(format) && format != TileFormat::NVFP4);
        return wide ? 1 : 2;
    }
    if (groups == 2 && has_codebook(format))
        return format == TileFormat::IQ1 || format == TileFormat::IQ2_S ? 1 : 2;
    if (!has_group_floats(format)) return 1;
    const bool wide = format == TileFormat::NVFP4 || format == TileFormat::Q5_1;
    return wide || (groups == 4 && format == TileFormat::Q4_1) ? 1 : 2;
}

// kGrouped: several groups of tokens (experts, heads or slices of a batch); otherwise the
// launch's tokens are one group. kStaged: the input is in shared memory (staged_activations.h), which must hold it behind
// the struct; for up to eight tokens, and with groups only those of lists (LinearParams::groups) of up to four rows.
template <TileFormat F, int kGroups, bool kGrouped, bool kStaged>
struct Linear {
    static_assert(!kStaged || (kGroups <= (kGrouped ? 1 : 2) && !is_float(F)));
    using Params = LinearParams;
    static constexpr const char *kName = "linear";
    static constexpr int kThreads = kLinearThreads,
                         kBlocks = blocks_per_multiprocessor(F, kGroups, kGrouped, kStaged);
    static constexpr int kSlots = slots_of(F, kGroups, kGrouped, kStaged);
    using Shared = std::conditional_t<has_codebook(F), LinearBookShared<kGroups, kSlots, book_words(F)>,
                                      LinearShared<kGroups, kSlots>>;
    static constexpr int kTokens = kGroupTokens * kGroups;
    static constexpr bool kShort =
        short_of_registers(F, kGroups, kGrouped) || (kStaged && F == TileFormat::Q4_K);

    // Whether it prepares outputs that need whole rows (can_prepare_rows()).
    static constexpr bool kWholeRows = !kGrouped && (!kStaged || is_half(F));

    static constexpr bool kPreparesInput =
        kStaged && !kGrouped && kGroups == 1;  // LinearParams::prepare_input

    static DEVICE StagedInput<F, kGrouped> staged(const Params &p, Shared &shared) {
        return {p, reinterpret_cast<std::byte *>(&shared) + kStagedAt<Shared>};
    }

    // Before the groups are copied.
    static DEVICE Unit first_unit(const Params &p, int32_t groups, int32_t unit) {
        return unit_of<kGrouped, kStaged>(p, groups, unit,
                                          [&](int32_t index) { return group_at(p, kTokens, index); });
    }
    static DEVICE Unit unit_at(const Params &p, Shared &shared, int32_t groups, int32_t unit) {
        if constexpr (kStaged && kGrouped)
            return unit_of<kGrouped, kStaged>(
                p, groups, unit, [&](int32_t index) { return staged(p, shared).group_at(index); });
        else
            return first_unit(p, groups, unit);
    }
    static DEVICE const std::byte *tile_of(const Params &p, int matrix, const Unit &unit) {
        const int32_t expert = kGrouped ? unit.group.expert : 0;
        if constexpr (kStaged) {
            const LinearMatrix &m = p.matrix[matrix];
            const int32_t cols = kShort ? computed_anew(p.cols) : p.cols;
            return m.tiles + int64_t{expert * row_tiles32(m.rows) + unit.tile} * row_tile_bytes32(F, cols);
        } else {
            return tile_bytes(p, F, matrix, unit.tile, expert);
        }
    }

    // A warp's state between tiles: its range of blocks, and the registers into which the next tile's
    // first block is being loaded.
    struct Warp {
        Range range;
        MainRegisters<F> main;
        SideRegisters<F> side;
        Book<F> book;

        // What is kept of a tile: of a quantized one the address of the warp's first block, else that of the tile.
        DEVICE const std::byte *start_of(const std::byte *tile) const {
            return tile + (is_half(F) || is_float(F) ? 0 : range.begin * block_bytes(F));
        }
        DEVICE const std::byte *first_chunk(const std::byte *tile) const {
            return tile == nullptr ? nullptr : half_chunk<F>(tile, 4 * range.begin);
        }
        DEVICE NextBlock first_block(const Params &p, const std::byte *start) const {
            const int32_t begin = kShort && kGroups == 1 ? computed_anew(range.begin) : range.begin;
            return {start, start == nullptr ? 0 : chunks_of<F, kStaged>(p.cols, begin)};
        }
        // Starts the load of the warp's first block.
        DEVICE void begin(const Params &p, const std::byte *start) {
            if constexpr (is_half(F))
                load_half_chunk(first_chunk(start), main.main);
            else if constexpr (!is_float(F))
                load_block<F>(first_block(p, start), main, side);
        }
        // Fetches it into L2 instead.
        DEVICE void fetch(const Params &p, const std::byte *start) const {
            if constexpr (is_half(F))
                prefetch_l2_by_warp(first_chunk(start), tile_layout(F).chunk);
            else
                prefetch_block<F>(p, start, range.begin);
        }
    };

    // A lane's input for a group of tokens.
    static DEVICE auto input_of(const Params &p, Shared &shared, TokenGroup group) {
        if constexpr (is_float(F))
            return group;
        else if constexpr (kStaged)
            return StagedLane<F, kGroups>(staged(p, shared), group);
        else
            return LaneActivations<F, kGroups, kGrouped>(p, group);
    }

    // Multiplies the warp's range of one row tile. input: input_of(); start: start_of(); after: that of the tile
    // after this one, or null.
    template <class Input>
    static DEVICE void multiply(const Params &p, const Input &input, const std::byte *start,
                                const std::byte *after, Warp &warp, float (&sums)[kGroups][2]) {
        if constexpr (is_float(F))
            multiply_float_range<kGroups, kGrouped>(p, input, start, warp.range, sums);
        else if constexpr (is_half(F))
            multiply_half_range<F, kGroups>(p, input, start, warp.range, warp.first_chunk(after),
                                            warp.main.main, sums);
        else
            multiply_range<F, kGroups, kGrouped>(p, input, start, warp.range, warp.first_block(p, after),
                                                 warp.book, warp.main, warp.side, sums);
    }

    // Stores the lane's sums of a range for the other warps of the team.
    static DEVICE void store_partial(const float (&sums)[kGroups][2], Shared &shared, int slot, int matrix) {
        const int lane = kShort ? computed_anew(lane_index()) : lane_index();
        const int g = lane >> 2, t = lane & 3;
        auto &to = shared.partial[slot][matrix][warp_index()];
#pragma unroll
        for (int j = 0; j < kGroups; ++j) {
            to[kGroupTokens * j + t][g] = sums[j][0];
            to[kGroupTokens * j + t][g + 8] = sums[j][1];
        }
    }

    // The partial sums of a slot.
    using Partial = float[2][kWarps][kTokens][kTileRows];

    static DEVICE float folded(const Partial &partial, int matrix, int first_warp, int warps, int token,
                               int row) {
        float y = partial[matrix][first_warp][token][row];
        for (int w = 1; w < warps; ++w) y = y + partial[matrix][first_warp + w][token][row];
        return y;
    }

    // Writes the outputs of a unit. Called by `threads` threads, of which this is number `thread`.
    static DEVICE void finish(const Params &p, const Partial &partial, const Unit &unit, int first_warp,
                              int warps, int thread, int threads) {
        for (int i = thread; i < kTileRows * unit.group.count; i += threads) {
            const int in = i % kTileRows, token = i / kTileRows;
            const int32_t row = unit.tile * kTileRows + in;
            if (row >= p.matrix[unit.matrix].rows) continue;
            const float y = folded(partial, 0, first_warp, warps, token, in);
            const float up =
                p.gate != LinearGate::None ? folded(partial, 1, first_warp, warps, token, in) : 0.0f;
            write_output(p, {unit.matrix, unit.tile}, unit.group, token, row, y, up);
        }
    }

    // Writes the outputs of the team's units `unit`, `unit` + `step`, ..., one per slot. The team's warps share the
    // slots, or a slot its warps.
    static DEVICE void finish_slots(const Params &p, Shared &shared, int warps, int32_t groups, int slots,
                                    int32_t unit, int32_t step, int32_t units) {
        if constexpr (kSlots == 1) {
            const int first_warp = warp_index() & -warps;
            if (unit < units)
                finish(p, shared.partial[0], unit_at(p, shared, groups, unit), first_warp, warps,
                       thread_index() - 32 * first_warp, 32 * warps);
        } else {
            const int warp = warp_index() % warps, first_warp = warp_index() - warp;
            const int sharing = warps > kSlots ? warps / kSlots : 1,
                      shift = 31 - clz(static_cast<uint32_t>(sharing));
#pragma unroll 1
            for (int slot = warp >> shift; slot < slots; slot += warps >> shift) {
                const int32_t at = unit + slot * step;
                if (at < units)
                    finish(p, shared.partial[slot], unit_at(p, shared, groups, at), first_warp, warps,
                           warp % sharing * 32 + lane_index(), 32 * sharing);
            }
        }
    }

    // --- LinearParams::prepare ---

    // Groups of 256 outputs of a row.
    static DEVICE int32_t output_groups(const Params &p) {
        return static_cast<int32_t>((row_tiles(p.matrix[0].rows) + kGroupTiles - 1) / kGroupTiles);
    }

    // Lists the groups of outputs that the team's units `unit`, `unit` + `step`, ... (one per lane) complete: with groups of
    // tokens those of each, one after the other. Called by the team's first warp, after all outputs of the block are written.
    static DEVICE void arrive(const Params &p, Shared &shared, int team, int32_t groups, int32_t units,
                              int32_t unit, int32_t step) {
        const auto tiles = static_cast<int32_t>(row_tiles(p.matrix[0].rows));
        const bool whole = kWholeRows && needs_whole_rows(p.prepare);
        const int32_t mine = unit + lane_index() * step;
        const int32_t group = whole ? 0 : (kGrouped ? mine / groups : mine) / kGroupTiles;
        const int32_t counter = kGrouped ? mine % groups * output_groups(p) + group : group;
        bool last = false;
        if (mine < units) {
            const int32_t left = tiles - kGroupTiles * group;
            last = is_last_to_arrive(p.arrivals + counter, whole || left < kGroupTiles ? left : kGroupTiles);
        }
        const uint32_t all = ballot(last);
        if (last) shared.complete[team][popc(all & ((1u << lane_index()) - 1u))] = counter;
        if (lane_index() == 0) shared.complete_count[team] = popc(all);
    }

    // Quantizes the listed groups. Called by all threads, a block_sync() after arrive().
    static DEVICE void prepare_complete(const Params &p, Shared &shared, int teams) {
        for (int team = 0; team < teams; ++team) {
            const int32_t count = shared.complete_count[team];
            if (count == 0) continue;
            if constexpr (kGrouped) {
                const int32_t each = output_groups(p);
                for (int32_t i = warp_index(); i < count * kTokens; i += kWarps) {
                    const int32_t counter = shared.complete[team][i / kTokens];
                    const TokenGroup group = group_at(p, kTokens, counter / each);
                    if (i % kTokens < group.count)
                        quantize_group_of(p.prepare, group.first + i % kTokens, counter % each);
                }
            } else {
                if constexpr (kWholeRows)
                    if (needs_whole_rows(p.prepare)) {  // then there is one token
                        quantize_row(p.prepare, 0, shared.quantize);
                        continue;
                    }
                for (int32_t i = warp_index(); i < count * p.tokens; i += kWarps)
                    quantize_group_of(p.prepare, i % p.tokens, shared.complete[team][i / p.tokens]);
            }
        }
    }

    // Fetches the block's share of LinearParams::ahead into L2.
    static DEVICE void fetch_ahead(const Params &p) {
        constexpr uint32_t kPiece = 4096;
        const auto first = kPiece * static_cast<uint32_t>(warp_index() * block_count() + block_index()),
                   step = kPiece * static_cast<uint32_t>(kWarps * block_count());
#pragma unroll 1
        for (int i = 0; i < 2; ++i) {
            const auto bytes = static_cast<uint32_t>(p.ahead.part[i].bytes);
#pragma unroll 1
            for (uint32_t at = first; at < bytes; at += step)
                prefetch_l2_by_warp(p.ahead.part[i].weights + at, bytes - at < kPiece ? bytes - at : kPiece);
        }
    }

    static DEVICE void prepare_outputs(const Params &p, Shared &shared, int warps, int32_t groups,
                                       int32_t units) {
        // Recomputed here, so that nothing is kept in registers across the loop.
        const int warp = kShort ? computed_anew(warp_index()) : warp_index();
        const int teams = kWarps / warps, team = warp / warps;
        const int32_t step = block_count() * teams, rounds = (units + 32 * step - 1) / (32 * step);
        for (int32_t round = 0; round < rounds; ++round) {
            block_sync();
            if (warp % warps == 0)
                arrive(p, shared, team, groups, units, block_index() * teams + team + 32 * round * step,
                       step);
            block_sync();
            prepare_complete(p, shared, teams);
        }
    }

    static DEVICE void run(const Params &p) {
        fetch_parameters(p);
        auto &shared = shared_memory<Shared>();
        const auto blocks = static_cast<int32_t>(col_blocks(p.cols));
        const int warps = column_ranges(kGrouped ? p.range_blocks : blocks),
                  teams = kWarps / warps;                      // powers of two
        if (kGrouped && p.groups != nullptr) grid_dep_wait();  // a previous kernel writes the groups
        const int32_t groups = kGrouped ? groups_of(p, kTokens) : 1, units = tiles_of(p) * groups;
        Warp warp;
        warp.range = (kStaged ? shifted_range_of : range_of)(blocks, warps, warp_index() % warps);
        const auto start_of = [&](const Unit &u) { return warp.start_of(tile_of(p, u.matrix, u)); };
        const auto tile_at = [&](int32_t index) {
            return index < units ? start_of(unit_at(p, shared, groups, index)) : nullptr;
        };
        Place<(kSlots > 1)> place{block_index() * teams + warp_index() / warps};
        const std::byte *tile =
            place.unit() < units ? start_of(first_unit(p, groups, place.unit())) : nullptr;
        // (While the block prepares its input, no registers are free for weights.)
        const bool prepares_input = kPreparesInput && p.prepare_input.x != nullptr;
        if constexpr (kPreparesInput)
            if (tile != nullptr && prepares_input) warp.fetch(p, tile);
        if (tile != nullptr && !prepares_input) warp.begin(p, tile);
        if constexpr (has_codebook(F)) {
            fill_book(F, shared.book);
            block_sync();
            warp.book = Book<F>(shared.book);
        }
        if (block_index() == 0) {
            if constexpr (kWholeRows) fetch_norm(p.prepare);
            if constexpr (kPreparesInput) fetch_norm(p.prepare_input);
        }
        grid_dep_wait();
        if (!p.late_trigger) grid_dep_trigger();
        const auto step = [&] { return block_count() * (kShort ? computed_anew(teams) : teams); };
        // Computed again where a register would be kept for it.
        const auto warps_of_team = [&] {
            return kShort && kStaged && !kGrouped ? column_ranges(col_blocks32(computed_anew(p.cols)))
                                                  : warps;
        };
        // The same for all warps of the block.
        const auto has_units = [&] { return (place.unit() & -teams) < units; };
        if constexpr (kStaged) {
            if (has_units()) {
                if constexpr (kPreparesInput)
                    if (prepares_input) {
                        staged(p, shared).make(shared.quantize);
                        if (tile != nullptr) warp.begin(p, tile);
                    }
                if (!prepares_input) staged(p, shared).fill(groups);
            }
        }
        while (has_units()) {
#pragma unroll 1
            do {
                const std::byte *next = tile_at(place.unit() + step());
                if (tile != nullptr) {
                    const auto input = input_of(p, shared, unit_at(p, shared, groups, place.unit()).group);
                    // With a gate, the tile of `up` comes in between. It lies in its matrix where the gate's does.
                    const bool gate = p.gate != LinearGate::None;
                    const std::byte *after = gate ? p.matrix[1].tiles + (tile - p.matrix[0].tiles) : next;
                    // A loop, so that the products are in the code once.
#pragma unroll 1
                    for (;;) {
                        const int matrix = gate && after == next ? 1 : 0;
                        float sums[kGroups][2] = {};
                        multiply(p, input, tile, after, warp, sums);
                        store_partial(sums, shared, place.slot(), matrix);
                        if (after == next) break;
                        tile = after;
                        after = next;
                    }
                }
                tile = next;
                place.advance(step());
            } while (kSlots > 1 && place.slot() < kSlots && has_units());
            const int slots = kSlots > 1 ? place.slot() : 1;
            place = {place.unit()};
            block_sync();
            finish_slots(p, shared, warps_of_team(), groups, slots, place.unit() - slots * step(), step(),
                         units);
            block_sync();
        }
        if constexpr (kStaged) fetch_ahead(p);
        if constexpr (kTokens <= kPreparedTokens)
            if (p.prepare.x != nullptr) prepare_outputs(p, shared, warps_of_team(), groups, units);
        if (p.late_trigger) grid_dep_trigger();
    }
};

template <TileFormat F, bool kGrouped>
Kernel<LinearParams> kernel_of_version(LinearVersion v) {
    if (v.tokens <= kGroupTokens)
        return v.staged ? kernel_of<Linear<F, 1, kGrouped, !is_float(F)>>()
                        : kernel_of<Linear<F, 1, kGrouped, false>>();
    if constexpr (!kGrouped)
        if (v.tokens > 2 * kGroupTokens) return kernel_of<Linear<F, 4, false, false>>();
    return !kGrouped && v.staged ? kernel_of<Linear<F, 2, kGrouped, !kGrouped && !is_float(F)>>()
                                 : kernel_of<Linear<F, 2, kGrouped, false>>();
}
template <TileFormat F>
Kernel<LinearParams> for_format(LinearVersion v) {
    return v.grouped ? kernel_of_version<F, true>(v) : kernel_of_version<F, false>(v);
}

}  // namespace

}  // namespace runnel::kernels::cuda
