// Memory of the KV cache under reservation and under paging: replays the requests of a run in a memory of a given
// size, and counts where its cells go.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace runnel::measure {

// Tokens of a request. `limit`: the most cells that it may take; prompt + answer <= limit <= context.
struct PagingRequest {
    int64_t prompt, answer, limit;
    int64_t arrival = 0;  // the first step that may run it
    // An id for each full page of the prompt, from the first on: the same id means the same page after the same
    // beginning. May be shorter, or empty: then those pages are shared with no other request.
    std::vector<uint64_t> beginning = {};
};

enum class Allocation {
    Context,  // a contiguous range of a whole context for every request, first fit
    Limit,    // a contiguous range of the request's limit, first fit
    Pages,    // pages as they are needed; when none is left, the newest request gives its pages back
    Shared,   // the same, and requests that run at the same time share the pages of equal beginnings
};

enum class PageUse : uint8_t { Free, Reserved, Filled, Shared };  // Reserved: without a token

struct PagingMemory {
    int64_t cells;     // of the cache
    int64_t context;   // cells of a whole context
    int32_t parallel;  // most requests at a time
    int32_t page = 32;
};

// A replay is a sequence of steps: requests are admitted in the order given, each that runs computes its prompt in its
// first step and one token per step, and those that are complete give their cells back. Steps in which nothing runs
// are not counted. Sums are over the steps.
struct PagingReplay {
    int64_t steps = 0, requests = 0, preemptions = 0;
    int64_t running = 0;         // requests
    int32_t most_running = 0;    // in one step
    int64_t most_held = 0;       // cells reserved, or in pages, in one step
    int64_t all = 0;             // cells of the memory
    int64_t used = 0;            // cells that hold a token; a shared one counts once
    int64_t saved = 0;           // cells that the requests would hold more without sharing
    int64_t waited = 0;          // steps between arrival and admission, over the requests
    int64_t internal_waste = 0;  // reserved, or in pages, without a token
    int64_t external_waste = 0;  // free, while the next request waits because it does not fit
    int64_t too_large = 0;       // requests that do not fit into the whole memory: left out

    double share(int64_t part) const { return all > 0 ? static_cast<double>(part) / double(all) : 0; }
    double mean_running() const { return steps > 0 ? double(running) / double(steps) : 0; }

    // The memory in the first step with most_held, a page at a time, pages after the last one in use left out.
    // Reserved ranges are where first fit put them; pages are in the order of the requests.
    std::vector<PageUse> fullest = {};
};

// Precondition: arrivals do not descend. `look` is called after every 1,024 steps, if given; it may throw.
PagingReplay replay(std::span<const PagingRequest> requests, const PagingMemory &memory, Allocation how,
                    const std::function<void()> &look = {});

}  // namespace runnel::measure
