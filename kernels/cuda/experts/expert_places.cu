// Places of experts; see expert_places.h. Both kernels do little besides waiting for the bus: an expert of 3 MB should take
// 120 us over PCIe 4 with 16 lanes.
#include "kernels/cuda/experts/expert_places.h"

#include "kernels/cuda/runtime/device.h"

namespace runnel::kernels::cuda {

namespace {

// --- place experts -----------------------------------------------------------------------------------------

struct alignas(16) PlaceExpertsShared {
    uint64_t used_at[kMaxExperts];    // of the places
    uint32_t chosen[kMaxExperts];     // by how many pairs
    int32_t is_missing[kMaxExperts];  // the expert waits for a place
    int32_t is_taken[kMaxExperts];    // the place has an expert of this round
    int32_t holds[kMaxExperts];       // the place's expert, or -1
    uint32_t held[kMaxExperts];       // how often the batch chose that one
    int32_t is_free[kMaxExperts];     // the place may be given away
    int32_t free_place[kMaxExperts];  // these places, in the order in which they are given away
    uint32_t chosen_here, all_missing, all_free;
};
static_assert(sizeof(PlaceExpertsShared) == kPlaceExpertsShared);

struct PlaceExperts {
    using Params = PlaceExpertsParams;
    static constexpr const char *kName = "place_experts";
    static constexpr int kThreads = kMaxExperts, kBlocks = 1;

    // The number of experts that get a place before expert `own`.
    static DEVICE uint32_t missing_before(int32_t own, int32_t experts, const PlaceExpertsShared &shared) {
        const uint32_t chosen = shared.chosen[own];
        uint32_t before = 0;
        for (int32_t i = 0; i < experts; ++i)
            before += shared.is_missing[i] != 0 &&
                      (shared.chosen[i] < chosen || (shared.chosen[i] == chosen && i < own));
        return before;
    }

    // The number of places that are given away before place `own`.
    static DEVICE uint32_t free_before(int32_t own, int32_t places, const PlaceExpertsShared &shared) {
        const uint32_t held = shared.held[own];
        const uint64_t used_at = shared.used_at[own];
        uint32_t before = 0;
        for (int32_t i = 0; i < places; ++i) {
            const bool is_older = shared.used_at[i] < used_at || (shared.used_at[i] == used_at && i < own);
            before +=
                shared.is_free[i] != 0 && (shared.held[i] < held || (shared.held[i] == held && is_older));
        }
        return before;
    }

    static DEVICE void run(const Params &p) {
        auto &shared = shared_memory<PlaceExpertsShared>();
        const int32_t own = thread_index();  // an expert, and also a place
        shared.chosen[own] = 0;
        shared.is_taken[own] = 0;
        if (own == 0) shared.chosen_here = 0, shared.all_missing = 0, shared.all_free = 0;
        grid_dep_wait();
        grid_dep_trigger();
        block_sync();
        for (int32_t i = own; i < p.pairs; i += kThreads) atomic_add_u32(&shared.chosen[p.chosen[i]], 1);
        block_sync();
        const bool is_expert = own < p.experts, is_place = own < p.places;
        const bool done = is_expert && p.round > 0 && p.done[own] != 0;
        const bool waits = is_expert && shared.chosen[own] > 0 && !done;
        int32_t place = waits ? p.place_of[own] : -1;
        const bool is_resident = place >= 0, is_missing = waits && !is_resident;
        const uint64_t now = p.counts->rounds + 1;
        if (is_resident) shared.is_taken[place] = 1;
        const int32_t holds = is_place ? p.expert_of[own] : -1;
        shared.is_missing[own] = is_missing;
        shared.holds[own] = holds;
        shared.held[own] = holds >= 0 ? shared.chosen[holds] : 0;
        shared.used_at[own] = is_place ? p.used_at[own] : 0;
        block_sync();
        const bool is_free = is_place && shared.is_taken[own] == 0;
        shared.is_free[own] = is_free;
        block_sync();
        uint32_t rank = 0;
        if (is_missing) {
            rank = missing_before(own, p.experts, shared);
            atomic_add_u32(&shared.all_missing, 1);
        }
        if (is_free) {
            shared.free_place[free_before(own, p.places, shared)] = own;
            atomic_add_u32(&shared.all_free, 1);
        }
        block_sync();
        uint32_t fetched = static_cast<uint32_t>(p.most);
        if (shared.all_missing < fetched) fetched = shared.all_missing;
        if (shared.all_free < fetched) fetched = shared.all_free;
        if (is_missing && rank < fetched) {
            place = shared.free_place[rank];
            const int32_t before = shared.holds[place];
            if (before >= 0) p.place_of[before] = -1;
            p.expert_of[place] = own;
            p.place_of[own] = place;
            p.fetched[rank] = {own, place};
        }
        if (is_expert) {
            p.here[own] = place;
            p.done[own] = done || place >= 0;
        }
        if (place >= 0) {
            p.used_at[place] = now;
            atomic_add_u32(&shared.chosen_here, 1);
        }
        block_sync();
        if (own == 0) {
            *p.fetched_count = static_cast<int32_t>(fetched);
            p.counts->rounds = now;
            p.counts->chosen += shared.chosen_here;
            p.counts->fetched += fetched;
        }
    }
};

// --- fetch experts -----------------------------------------------------------------------------------------

struct FetchExperts {
    using Params = FetchExpertsParams;
    static constexpr const char *kName = "fetch_experts";
    static constexpr int kThreads = 256, kBlocks = 4;

    // All blocks copy together, in pieces of `size` bytes: 16 or 4.
    template <int size>
    static DEVICE void copy(std::byte *to, const std::byte *from, int64_t bytes) {
        const int64_t first = int64_t{block_index()} * block_threads() + thread_index(),
                      step = int64_t{block_count()} * block_threads() * size;
        for (int64_t at = first * size; at < bytes; at += step) {
            if constexpr (size == 16)
                st128(to + at, ld128(from + at));
            else
                *reinterpret_cast<uint32_t *>(to + at) = *reinterpret_cast<const uint32_t *>(from + at);
        }
    }

    static DEVICE void run(const Params &p) {
        grid_dep_wait();
        grid_dep_trigger();
        const int32_t count = *p.fetched_count;
        for (int32_t i = 0; i < count; ++i) {
            const FetchedExpert fetched = p.fetched[i];
            for (int32_t k = 0; k < p.parts; ++k) {
                const FetchedPart &part = p.part[k];
                std::byte *const to = part.to + fetched.place * part.bytes;
                const std::byte *const from = part.from + fetched.expert * part.bytes;
                if (part.bytes % 16 == 0)
                    copy<16>(to, from, part.bytes);
                else
                    copy<4>(to, from, part.bytes);
            }
        }
    }
};

}  // namespace

Kernel<PlaceExpertsParams> place_experts_kernel() {
    return kernel_of<PlaceExperts>();
}
Kernel<FetchExpertsParams> fetch_experts_kernel() {
    return kernel_of<FetchExperts>();
}

}  // namespace runnel::kernels::cuda
