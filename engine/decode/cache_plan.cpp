#include "engine/decode/cache_plan.h"

#include <algorithm>
#include <optional>
#include <string>

#include "engine/decode/error.h"
#include "gguf/base/bytes.h"
#include "kernels/divided_groups.h"
#include "kernels/steps.h"

namespace runnel::decode {
namespace {

using cache::GroupLayout;
using cache::Reach;
using kernels::kBlockTokens;

constexpr int64_t kLeastContext = 256;  // never reduce the context below this to fit the memory

int32_t groups_of(const kernels::Program &program) {
    int32_t groups = 0;
    for (const kernels::CacheLayer &layer : program.cache_layers) groups = std::max(groups, layer.group + 1);
    return groups;
}

// The widest window (0: none) and the most sinks among the group's layers.
Reach reach_of(const kernels::Program &program, int32_t group) {
    std::optional<Reach> widest;
    for (const kernels::Step &step : program.steps)
        kernels::visit_caches(step, [&](const kernels::CacheUse &use) {
            if (program.cache_layers[static_cast<size_t>(use.cache)].group != group) return;
            if (!widest) widest = Reach{use.window, use.sink_cells};
            widest->sinks = std::max(widest->sinks, use.sink_cells);
            const bool all = widest->window == 0 || use.window == 0;
            widest->window = all ? 0 : std::max(widest->window, use.window);
        });
    return widest.value_or(Reach{});
}

// Blocks of a group with a window when all sequences grow. 3 more per sequence: window and slack may begin
// and end inside a block, and the last block may have to be copied.
int64_t window_blocks(Reach reach, const CacheShape &shape) {
    const int64_t each = blocks_for(reach.sinks) + blocks_for(int64_t{reach.window} + shape.slack) + 3;
    return each * (int64_t{shape.sequences} + shape.kept) + blocks_for(shape.batch);
}

[[noreturn]] void fail(const std::string &what) {
    throw DecodeError(DecodeError::Kind::OutOfMemory, what);
}

// The most cells (whole blocks, at most `most` rounded up) whose cache fits all budgets, for sequences of up
// to `context` cells.
int64_t fitting_cells(const kernels::Program &program, CacheShape shape, std::span<const CacheBudget> budgets,
                      int64_t most, int64_t context) {
    int64_t low = 0, high = blocks_for(most);
    while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        shape.cells = middle * kBlockTokens;
        const kernels::CacheConfig cache = cache_config(program, shape, std::min(shape.cells, context));
        const bool fits = std::all_of(budgets.begin(), budgets.end(), [&](const CacheBudget &budget) {
            return budget.cost(cache, shape) <= budget.bytes;
        });
        if (fits)
            low = middle;
        else
            high = middle - 1;
    }
    return low * kBlockTokens;
}

// Cells of one sequence: as requested, and the least that is acceptable.
struct Wish {
    int64_t wanted, least;
};
Wish wish_of(const ContextRequest &request) {
    const int64_t wanted =
        std::clamp<int64_t>(request.asked > 0 ? request.asked : request.own, 1, kMostContext);
    return {wanted, request.asked > 0 ? wanted : std::min(wanted, kLeastContext)};
}

// The bytes of a device's free memory that a cache may take.
size_t cache_budget(const kernels::MemoryNeed &need, size_t free, const ContextRequest &request) {
    const size_t taken = need.weights + need.work, beside = free > taken ? free - taken : 0;
    if (!need.mapped) return beside;
    // Mapped weights need not stay in memory: the page cache can evict them and read them again.
    return request.asked > 0 && request.sequences == 1 ? free : std::max(beside, free / 8);
}

CacheShape shape_of(int64_t cells, const ContextRequest &request) {
    return {.cells = cells,
            .sequences = request.sequences,
            .batch = request.batch,
            .slack = request.slack,
            .types = request.types,
            .ranks = request.ranks};
}

}  // namespace

int64_t blocks_for(int64_t cells) {
    return (cells + kBlockTokens - 1) / kBlockTokens;
}

int64_t cells_for(int64_t context, int32_t sequences) {
    const int64_t each = sequences > 1 ? blocks_for(context) * kBlockTokens : context;
    return std::min(each * sequences, kMostContext);
}

std::vector<GroupLayout> group_layouts(const kernels::Program &program, const CacheShape &shape) {
    std::vector<GroupLayout> layouts;
    const std::vector<int32_t> shares = kernels::divided_groups(program, shape.ranks);
    for (int32_t group = 0; group < groups_of(program); ++group) {
        const Reach reach = reach_of(program, group);
        const int32_t devices = shares[static_cast<size_t>(group)];
        int64_t blocks = blocks_for(shape.cells);
        if (reach.window > 0) blocks = std::min(blocks, window_blocks(reach, shape));
        if (const int64_t ranges = int64_t{devices} * cache::kRangeBlocks; devices > 1)
            blocks = (blocks + ranges - 1) / ranges * ranges;
        layouts.push_back({static_cast<int32_t>(blocks), reach, devices});
    }
    return layouts;
}

int32_t state_slots(const kernels::Program &program, const CacheShape &shape) {
    constexpr int64_t kCheckpoints = 16, kMostSlots = 1 << 20;
    const auto bytes = static_cast<int64_t>(kernels::state_bytes(program));
    if (bytes == 0) return 0;
    int64_t kv = 0;
    const std::vector<GroupLayout> layouts = group_layouts(program, shape);
    for (size_t group = 0; group < layouts.size(); ++group)
        kv += static_cast<int64_t>(kernels::cache_block_bytes(program, static_cast<int32_t>(group),
                                                              shape.types.k, shape.types.v)) *
              layouts[group].blocks;
    const int64_t intervals = shape.cells / cache::kStateInterval + 1;
    const int64_t checkpoints = std::min(intervals, std::max(kCheckpoints, kv / bytes));
    return static_cast<int32_t>(std::min(2 * int64_t{shape.sequences} + checkpoints, kMostSlots));
}

kernels::CacheConfig cache_config(const kernels::Program &program, const CacheShape &shape, int64_t context) {
    kernels::CacheConfig config{.blocks = {},
                                .k = shape.types.k,
                                .v = shape.types.v,
                                .context = static_cast<int32_t>(std::min(context, kMostContext))};
    for (const GroupLayout &layout : group_layouts(program, shape)) {
        config.blocks.push_back(layout.blocks);
        config.shares.push_back(layout.shares);
    }
    config.states = state_slots(program, shape);
    return config;
}

size_t cache_bytes(const kernels::Program &program, const CacheShape &shape) {
    return kernels::block_bytes(program, cache_config(program, shape, shape.cells));
}

size_t cache_bytes(const kernels::Program &program, int64_t cells, CacheTypes types) {
    size_t block = 0;
    for (int32_t group = 0; group < groups_of(program); ++group)
        block += kernels::cache_block_bytes(program, group, types.k, types.v);
    return block * static_cast<size_t>(blocks_for(cells));
}

CacheBudget budget_of(const kernels::Device &device, const kernels::Program &share, size_t free,
                      const ContextRequest &request) {
    return {cache_budget(device.need(share, {}, request.batch), free, request),
            [&device, &share](const kernels::CacheConfig &cache, const CacheShape &shape) {
                return device.cache_need(share, cache, shape.batch);
            }};
}

CacheBudget budget_beside(CacheBudget budget, const ContextRequest &request) {
    if (request.beside)
        budget.cost = [&request, alone = std::move(budget.cost)](const kernels::CacheConfig &cache,
                                                                 const CacheShape &shape) {
            return alone(cache, shape) + request.beside(shape, cache.context);
        };
    return budget;
}

CacheBudget budget_of_share(CacheBudget budget, size_t rank) {
    budget.cost = [rank, cost = std::move(budget.cost)](const kernels::CacheConfig &cache,
                                                        const CacheShape &shape) {
        return cost(kernels::share_of(cache, rank), shape);
    };
    return budget;
}

std::optional<ContextPlan> plan_context(const kernels::Program &program, std::span<const CacheBudget> budgets,
                                        const ContextRequest &request) {
    if (request.asked > kMostContext)
        fail("a context of " + std::to_string(request.asked) +
             " tokens is longer than runnel supports: choose " + std::to_string(kMostContext) +
             " or less with -c");
    const auto [wanted, least] = wish_of(request);
    const bool given = request.cache_size > 0;
    std::vector<CacheBudget> all(budgets.begin(), budgets.end());
    if (given)
        all.push_back({static_cast<size_t>(request.cache_size),
                       [&](const kernels::CacheConfig &cache, const CacheShape &) {
                           return kernels::block_bytes(program, cache);
                       }});
    const int64_t most = cells_for(wanted, request.sequences);
    const int64_t cells =
        fitting_cells(program, shape_of(0, request), all, given ? kMostContext : most, wanted);
    if (cells < least) return std::nullopt;
    const CacheShape shape = shape_of(given ? cells : std::min(cells, most), request);
    const int64_t context = std::min(wanted, cells);
    return ContextPlan{static_cast<int32_t>(context), context < wanted, shape.cells,
                       cache_bytes(program, shape)};
}

ContextPlan plan_context(const kernels::Program &program, const kernels::Device &device, size_t free,
                         const ContextRequest &request) {
    const bool given = request.cache_size > 0;
    std::vector<CacheBudget> budgets;  // empty: --cache-size is not checked against the free memory
    if (!given) budgets.push_back(budget_beside(budget_of(device, program, free, request), request));
    const kernels::MemoryNeed need = device.need(program, {}, request.batch);
    if (!need.mapped && need.weights > free)
        fail("a copy of the weights needs " + base::mebibytes(need.weights) + ", but only " +
             base::mebibytes(free) + " of memory is free: leave out --load-mode");
    if (const auto plan = plan_context(program, budgets, request)) return *plan;
    const int64_t least = wish_of(request).least;
    const std::string needs = std::to_string(least) + " tokens needs " +
                              base::mebibytes(cache_bytes(program, shape_of(least, request))) +
                              " of cache, but ";
    if (given)
        fail("a context of " + needs + "--cache-size is " +
             base::mebibytes(static_cast<size_t>(request.cache_size)) +
             ": choose a shorter context with -c, or a larger --cache-size");
    fail("a context of " + needs + "only " + base::mebibytes(free) + " of memory is free" +
         (request.asked > 0 ? ": choose a shorter context with -c"
                            : " in addition to " + base::mebibytes(need.weights) + " of weights"));
}

}  // namespace runnel::decode
