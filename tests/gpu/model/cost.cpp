#include "tests/gpu/model/cost.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/staged_layout.h"

namespace runnel::tests::model {

using namespace kernels::cuda;

namespace {

constexpr int kBlockWarps = kLinearThreads / 32, kSchedulers = 4;

// The share of its slots that a scheduler issues at best.
constexpr Range kIssueShare = {0.92, 0.85, 0.75};
// Bytes of quantized weights that a multiprocessor multiplies per clock at most, whatever the format: measured on an H200
// (gate and up of Q4_K 11.2, of Q8_0 10.1, down of Q6_K 10.5, where the device has 18 to read), with kernels that converted to
// binary16. Neither issue slots (Q8_0 fills 27%) nor bytes under way explain it: warps wait for activations from L1 and for each
// other. Taken for kernels that multiply int8 and read through L1, too (not measured).
constexpr Range kConverted = {12, 11, 10};
// The same of F16: the figure with which the model gives the tokens per second that an H200 had (15.5 were reached, with the
// bandwidth as the nearer limit).
constexpr Range kHalves = {25, 22, 19};
// The same with the input in shared memory, where a scheduler's warps wait for memory alone: not measured. In the best case there
// is no limit of this kind, in the worst it is kConverted; in the middle case that of F16, whose kernel reads activations through
// L1 half as often per byte of weights as the others did.
constexpr Range kStaged = {1e9, 22, 11};
// The share of idle time between matrices in which their weights come into L2 (LinearParams::ahead): not measured.
constexpr Range kFetched = {1, 0.5, 0};
constexpr double kFetchedL2 = 0.25;  // of L2, at most (look_ahead.cpp)
// Where only one block fits on a multiprocessor, the share of that, from steps of 8 sequences on an H200: 0.85 fits the down
// projections (Q6_K) of Llama-3-8B, 0.7 the experts (Q4_K) that Qwen3-30B-A3B had then.
constexpr double kConvertedByOne = 0.75;
// Of the writing part's instructions, how many run: its branches for gates and biases are not all taken.
constexpr Range kFinishShare = {0.5, 0.65, 1};
// Microseconds: the last block's norm and quantization; attention of a layer at a short context (2000 instructions of a
// warp, one after the other, on few blocks), both measured on an H200; the copy of a step's input, the graph's launch and
// the wait for the token.
constexpr Range kNorm = {2.5, 3, 3.5}, kAttentionMeasured = {7.5, 8.5, 9.5}, kHost = {30, 37, 45};
// Attention by 8 warps in place of 4: the longest warp runs 2,077 instructions of PTX at 40 cells and 3,040 at 100, where it ran
// 3,037 and 4,550 (heads of 128, 4 of them on one K/V head). A guess: in the middle case a quarter less time, for two warps now
// share a scheduler.
constexpr Range kAttention = {5.2, 6.4, 8};
// Of a norm that the blocks of the launch behind it do, each for itself, up to four tokens: a guess. They read 4 bytes per value
// from L2 in place of 2 (0.5 microseconds for 4096 values, at kActivations), and run some 600 instructions per warp (1 microsecond
// for the 16 warps of a multiprocessor), while they have no weights of their own under way.
constexpr Range kOwnNorm = {1, 1.5, 2.2};
// Of a mixture's layer: what it takes beyond boundaries, norms and its experts' bytes. When it was measured: the router's matrix
// (7 microseconds on 8 blocks), the choice of experts, their groups and two quantizations, about 20 together. Now, guesses by the
// latencies one after the other: 2 for the router's rows on 16 blocks, 3 for the choice and the groups by the last of them, 2 for
// the sum, 2 for `gate` and `up` to quantize their groups.
constexpr Range kRouting = {6, 9, 13}, kRoutingMeasured = {16, 20, 24};
// Bytes of activations per clock and multiprocessor that the blocks of a batch read from L2: every block reads all rows,
// those of 8 tokens of 14336 values are 229 KB, and 256 blocks of a launch 59 MB. Fitted to what steps of 8
// sequences took on an H200 beyond steps of one: for Llama-3-8B 0.6 to 0.9 ms in Q4_K_M, Q8_0 and F16.
constexpr Range kActivations = {22, 19, 16};
constexpr double kMicro = 1e-6;

// Whether two blocks with the launch's input fit on a multiprocessor (staged_activations.h).
bool is_staged_on(const Device &device, const MatrixLaunch &launch, int tokens) {
    constexpr double kReserved = 1, kOthers = 17.1;  // KB of a block; less for kernels with one slot
    if (tokens > kStagedTokens && launch.experts == 0) return false;
    const double rows = launch.experts > 0 && launch.what == "down" ? launch.experts * launch.inputs : tokens;
    if (rows > static_cast<double>(kDigitRows)) return false;
    const double copy = rows * staged_row_bytes(launch.format, static_cast<int32_t>(launch.cols)) / 1024.0;
    return copy + kOthers + kReserved <= device.shared / 2.0;
}

// The kernel that a launch takes: groups of experts with few rows have at most 4, other launches 5 to 8 tokens of one
// kernel. (Of those that were measured, measured.txt has none for 5 to 8 tokens of F16 and of formats with floats per group: those
// for 4 stand in for them, which have some 5% fewer instructions.)
std::string kernel_name(const MatrixLaunch &launch, int tokens, bool staged, Version version) {
    const bool grouped = launch.experts > 0;
    const bool known =
        version == Version::Now || (!is_half(launch.format) && !has_group_floats(launch.format));
    return "Linear<(TileFormat)" + std::to_string(static_cast<int>(launch.format)) + ", " +
           (tokens > kSmallGroupTokens && !grouped && known ? "2" : "1") + (grouped ? ", true" : ", false") +
           (staged ? ", true>" : ", false>");
}

const LinearCode &code_of(const CodeTable &table, const Device &device, const std::string &name) {
    const auto found = table.find({device.code, name});
    if (found == table.end())
        throw std::out_of_range("the table of instructions has no " + name + " for sm_" +
                                std::to_string(device.code));
    return found->second;
}

// Bytes per clock and multiprocessor.
double converted(TileFormat format, const LinearCode &code, bool staged, Case c) {
    return (staged            ? kStaged
            : is_half(format) ? kHalves
                              : kConverted)
               .at(c) *
           (resident_blocks(code.registers) == 1 ? kConvertedByOne : 1);
}

// How the tiles of a launch are divided (linear_body.h).
struct Grid {
    int64_t units;          // tiles of rows (of both matrices of a gated pair)
    int warps;              // of a unit
    int64_t blocks, slots;  // slots: units at a time

    Grid(const MatrixLaunch &launch, const LinearCode &code, const Device &device)
        : units(row_tiles(launch.rows) * std::max(1, launch.experts)),
          warps(kernels::column_ranges(col_blocks(launch.cols))) {
        const int64_t teams = kBlockWarps / warps;
        blocks = std::min<int64_t>((units + teams - 1) / teams,
                                   int64_t{resident_blocks(code.registers)} * device.multiprocessors);
        slots = blocks * teams;
    }
};

// Bytes per warp that are under way: the block of weights that is loaded ahead.
double ahead(TileFormat format) {
    constexpr double kHalfChunk = 2048;
    return is_half(format) ? kHalfChunk : static_cast<double>(block_bytes(format));
}

// The time of the bytes: in a round, only blocks with a tile load.
double time_of_bytes(const MatrixLaunch &launch, const Grid &grid, const Device &device, Case c) {
    const double rate = device.read.at(c) * 1e9;
    // Bytes under way that this rate needs, by the latency that the middle case implies.
    const double needed = device.multiprocessors * device.in_flight * device.read.at(c) / device.read.middle;
    const double per_unit = static_cast<double>(launch.bytes()) / static_cast<double>(grid.units);
    const double per_tile = grid.warps * ahead(launch.format);
    double time = 0;
    for (int64_t left = grid.units; left > 0;) {
        const int64_t now = std::min(left, grid.slots);
        const double share = std::min(1.0, static_cast<double>(now) * per_tile / needed);
        const int64_t rounds = now == grid.slots ? left / grid.slots : 1;
        time += static_cast<double>(rounds * now) * per_unit / (rate * share);
        left -= rounds * now;
    }
    return time;
}

double time_of_instructions(const MatrixLaunch &launch, int tokens, const Grid &grid, const LinearCode &code,
                            const Device &device, Case c, bool staged) {
    const double tiles = std::ceil(static_cast<double>(grid.units) / device.multiprocessors);
    const double halves = launch.gated ? 2 : 1;
    const int writers = std::min(grid.warps, (kTileRows * tokens + 31) / 32);
    Counts all;  // of the multiprocessor with the most tiles
    all.add(code.block, tiles * halves * static_cast<double>(col_blocks(launch.cols)));
    all.add(code.around, tiles * halves * grid.warps);
    all.add(code.tile, tiles * grid.warps);
    all.add(code.finish, tiles * writers * kFinishShare.at(c));
    all.add(code.start, std::ceil(static_cast<double>(grid.blocks) / device.multiprocessors) * kBlockWarps);
    double clocks =
        std::max(all.all, kIssueShare.at(c) * kSchedulers * tiles * static_cast<double>(launch.bytes()) /
                              static_cast<double>(grid.units) / converted(launch.format, code, staged, c));
    for (size_t i = 0; i < all.pipe.size(); ++i) clocks = std::max(clocks, all.pipe[i] * device.clocks[i]);
    return clocks / kSchedulers / (device.clock.at(c) * 1e9 * kIssueShare.at(c));
}

// Reading all rows of activations but the first, which is part of the other figures.
double time_of_activations(const MatrixLaunch &launch, const Grid &grid, const Device &device, Case c) {
    constexpr double kValue = 2;  // bytes
    const double bytes =
        static_cast<double>(grid.blocks * launch.cols) * std::max(launch.inputs - 1, 0.0) * kValue;
    return bytes / (kActivations.at(c) * device.multiprocessors * device.clock.at(c) * 1e9);
}

}  // namespace

LaunchCost cost_of(const MatrixLaunch &launch, int tokens, const Device &device, const CodeTable &table,
                   Case c, Version version) {
    const bool staged = version == Version::Now && is_staged_on(device, launch, tokens);
    const LinearCode &code = code_of(table, device, kernel_name(launch, tokens, staged, version));
    const Grid grid(launch, code, device);
    LaunchCost cost;
    cost.bytes = time_of_bytes(launch, grid, device, c);
    cost.instructions = time_of_instructions(launch, tokens, grid, code, device, c, staged);
    // Two limits close to each other cost more than the larger one: up to 19%.
    cost.time = std::pow(std::pow(cost.bytes, 4) + std::pow(cost.instructions, 4), 0.25);
    cost.time += time_of_activations(launch, grid, device, c);
    return cost;
}

namespace {

// Of a norm of up to four tokens.
double norm_of(Version version, Case c) {
    return (version == Version::Now ? kOwnNorm : kNorm).at(c);
}

// The time before a launch in which no weights are read, except by it.
double idle_before(const MatrixLaunch &launch, int tokens, const Device &device, Case c) {
    // Of experts it is not known ahead which they will be.
    if (launch.experts > 0) return 0;
    const double boundary = device.boundary.at(c);
    if (launch.what == "output") return kMicro * (2 * boundary + kAttention.at(c));
    const bool normed =
        launch.what == "q, k and v" || launch.what == "q and k" || launch.what == "gate and up";
    if (!normed) return kMicro * boundary;
    // With more tokens the norm is a launch of its own.
    return kMicro *
           (tokens <= kSmallGroupTokens ? boundary + norm_of(Version::Now, c) : 2 * boundary + kNorm.at(c));
}

// What a launch saves by weights that were fetched before it.
double fetched_ahead(const MatrixLaunch &launch, int tokens, const Device &device, Case c) {
    const double bytes = std::min(static_cast<double>(launch.bytes()), kFetchedL2 * device.l2 * 1e6);
    return kFetched.at(c) *
           std::min(bytes / (device.read.at(c) * 1e9), idle_before(launch, tokens, device, c));
}

}  // namespace

TokenCost cost_of(const Shape &shape, FileType type, int tokens, const Device &device, const CodeTable &code,
                  Case c, Version version) {
    const TokenWork work =
        tokens == 1 ? one_token(shape, type, version) : one_batch(shape, type, tokens, version);
    TokenCost cost;
    cost.bytes = cost.matrices = static_cast<double>(work.other_bytes) / (device.read.at(c) * 1e9);
    for (const MatrixLaunch &launch : work.matrices) {
        const LaunchCost one = cost_of(launch, tokens, device, code, c, version);
        cost.bytes += launch.count * one.bytes;
        cost.instructions += launch.count * one.instructions;
        cost.matrices += launch.count * one.time;
        if (version == Version::Now && tokens <= kStagedTokens)
            cost.ahead += launch.count * fetched_ahead(launch, tokens, device, c);
    }
    cost.boundaries = work.launches() * device.boundary.at(c) * kMicro;
    cost.norms = work.norms * (tokens <= kSmallGroupTokens ? norm_of(version, c) : kNorm.at(c)) * kMicro;
    const bool now = version == Version::Now;
    cost.attention = shape.layers * (now ? kAttention : kAttentionMeasured).at(c) * kMicro;
    const Range &routing = now ? kRouting : kRoutingMeasured;
    cost.routing = shape.experts > 0 ? shape.layers * routing.at(c) * kMicro : 0;
    cost.host = kHost.at(c) * kMicro;
    return cost;
}

Range tokens_per_second(const Shape &shape, FileType type, const Device &device, const CodeTable &code,
                        Version version) {
    const auto rate = [&](Case c) { return 1 / cost_of(shape, type, 1, device, code, c, version).all(); };
    return {rate(Case::Optimistic), rate(Case::Middle), rate(Case::Pessimistic)};
}

}  // namespace runnel::tests::model
