// How much cache there is: blocks per group of layers, from what is asked for and what memory allows.
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

// What the pools are to hold.
struct CacheShape {
    int64_t cells;          // of all sequences together, in layers that see everything
    int32_t sequences = 1;  // that grow at the same time
    int32_t batch = 512;    // most tokens of a step
    int32_t slack = 256;    // cells of roll-back beyond a window
    CacheTypes types = {};
};

// Per group: what its layers see, and its blocks: for all cells, or, where the layers have a window, for
// window, slack and a step of every sequence, if that is less.
std::vector<cache::GroupLayout> group_layouts(const kernels::Program &program, const CacheShape &shape);

// Slots for the states of recurrent layers: two for each sequence (what a step reads, what it writes), and
// checkpoints: one per interval of all cells, but of no more bytes than their K and V, or 16. 0 without such
// layers.
int32_t state_slots(const kernels::Program &program, const CacheShape &shape);

// Bytes of cache for `shape`; and for `cells` cells that all layers hold, rounded up to whole blocks.
size_t cache_bytes(const kernels::Program &program, const CacheShape &shape);
// The pools, for sequences of up to `context` cells.
kernels::CacheConfig cache_config(const kernels::Program &program, const CacheShape &shape, int64_t context);
size_t cache_bytes(const kernels::Program &program, int64_t cells, CacheTypes types = {});

// The largest context there can be.
inline constexpr int64_t kMostContext = INT32_MAX / 2;

struct ContextRequest {
    int64_t own;             // the context that the model was made for
    int64_t asked = 0;       // cells; 0: `own`, reduced to what fits
    int64_t cache_size = 0;  // bytes; 0: as the device's free memory allows
    int32_t sequences = 1, batch = 512, slack = 256;
    CacheTypes types = {};
    // What is to run beside the model on the same GPU takes so many bytes of it, where the model has such a
    // cache for sequences of up to `context` cells. Empty: nothing is.
    std::function<size_t(const CacheShape &shape, int64_t context)> beside = {};
};

struct ContextPlan {
    int32_t context;     // most cells of one sequence
    bool reduced;        // less than the model was made for, for want of memory
    int64_t cells;       // for all sequences: CacheShape::cells
    size_t cache_bytes;  // of those
};

// The context, and cells for `sequences` of them, or for as many as fit beside the weights in `free` bytes of
// the device's memory, but at least one. With a cache size: as many cells as that holds, also more than the sequences
// need: what they leave behind is kept for those that begin with the same text. Throws
// DecodeError{OutOfMemory} with the numbers when not even one context fits.
ContextPlan plan_context(const kernels::Program &program, const kernels::Device &device, size_t free,
                         const ContextRequest &request);

// What a device that runs a partition of the program (kernels/split_program.h) can give to its part of the
// cache, and what a cache takes of it.
struct CacheBudget {
    size_t bytes;
    std::function<size_t(const kernels::CacheConfig &cache, const CacheShape &shape)> cost;
};
// Of `free` bytes; device and share outlive it.
CacheBudget budget_of(const kernels::Device &device, const kernels::Program &share, size_t free,
                      const ContextRequest &request);

// The same where several devices run the program: what fits all of them. nullopt when not even one context
// does.
std::optional<ContextPlan> plan_context(const kernels::Program &program, std::span<const CacheBudget> budgets,
                                        const ContextRequest &request);

}  // namespace runnel::decode
