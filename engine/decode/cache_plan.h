// Sizes the KV cache: blocks per group of layers, from the requested context and the free memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/cache/paged_cache.h"
#include "kernels/device.h"

namespace runnel::decode {

struct CacheTypes {
    kernels::CacheType k = kernels::CacheType::F16, v = kernels::CacheType::F16;
};

// What the block pools must have room for.
struct CacheShape {
    int64_t cells;          // of all sequences together, in layers without a window
    int32_t sequences = 1;  // that grow at the same time
    int32_t batch = 512;    // most tokens of a step
    int32_t slack = 256;    // cells kept beyond a window, for roll-backs
    CacheTypes types = {};
    int32_t kept = 0;   // further sequences that no longer grow but keep their windows
    int32_t ranks = 1;  // devices that divide the cells of layers without a window (kernels/divided_groups.h)
};

// Blocks that hold this many cells.
int64_t blocks_for(int64_t cells);

// Per group: the reach of its layers (window and sinks) and its blocks: enough for all cells or, with a
// window, for the sinks, window and slack of every sequence and one step, if that is less. Divided: whole ranges on each device.
std::vector<cache::GroupLayout> group_layouts(const kernels::Program &program, const CacheShape &shape);

// Slots for the states of recurrent layers: two per sequence (a step reads one and writes the other), plus
// checkpoints: one per kStateInterval cells, at most 16 or as many as fit the bytes of all K and V, whichever
// is more. 0 without such layers.
int32_t state_slots(const kernels::Program &program, const CacheShape &shape);

// Cells for so many sequences of up to `context` cells, at most kMostContext: each of several takes whole blocks.
int64_t cells_for(int64_t context, int32_t sequences);

// Bytes of cache for `shape`. The second overload: for `cells` cells in every layer, rounded up to whole blocks.
size_t cache_bytes(const kernels::Program &program, const CacheShape &shape);
// The sizes of the pools, for sequences of up to `context` cells.
kernels::CacheConfig cache_config(const kernels::Program &program, const CacheShape &shape, int64_t context);
size_t cache_bytes(const kernels::Program &program, int64_t cells, CacheTypes types = {});

// The largest supported context, in cells.
inline constexpr int64_t kMostContext = INT32_MAX / 2;

struct ContextRequest {
    int64_t own;             // the context that the model was made for
    int64_t asked = 0;       // cells; 0: `own`, reduced to what fits
    int64_t cache_size = 0;  // bytes; 0: as the device's free memory allows
    int32_t sequences = 1, batch = 512, slack = 256;
    CacheTypes types = {};
    int32_t ranks = 1;  // CacheShape::ranks
    // Bytes of memory for a program that runs next to the model on the same device, when the model's cache
    // has `shape` and sequences of up to `context` cells. Empty: no such program.
    std::function<size_t(const CacheShape &shape, int64_t context)> beside = {};
};

struct ContextPlan {
    int32_t context;     // most cells of one sequence
    bool reduced;        // shorter than the model's own, for lack of memory
    int64_t cells;       // for all sequences: CacheShape::cells
    size_t cache_bytes;  // of these cells
};

// Plans the context, and cells for `sequences` contexts, or for as many as fit next to the weights in `free`
// bytes of the device's memory, but at least for one. With a cache size: all cells that it holds, even more
// than the sequences need; the prefix cache uses the rest. Throws DecodeError{OutOfMemory} with the numbers
// when not even one context fits.
ContextPlan plan_context(const kernels::Program &program, const kernels::Device &device, size_t free,
                         const ContextRequest &request);

// Memory for the cache of a partition of the program (kernels/split_program.h): the bytes that its device has
// for it, and the bytes that a given cache costs there.
struct CacheBudget {
    size_t bytes;
    std::function<size_t(const kernels::CacheConfig &cache, const CacheShape &shape)> cost;
};
// What a cache may take of `free` bytes. `device` and `share` (the partition) must outlive the result.
CacheBudget budget_of(const kernels::Device &device, const kernels::Program &share, size_t free,
                      const ContextRequest &request);

// The same budget where ContextRequest::beside takes memory, too. The request must outlive the result.
CacheBudget budget_beside(CacheBudget budget, const ContextRequest &request);

// The same budget for the caches of which the rank's device has its share (kernels::share_of).
CacheBudget budget_of_share(CacheBudget budget, size_t rank);

// Plans for several devices that run the program together: the plan fits all budgets. nullopt when not even
// one context fits.
std::optional<ContextPlan> plan_context(const kernels::Program &program, std::span<const CacheBudget> budgets,
                                        const ContextRequest &request);

}  // namespace runnel::decode
