// Mixtures whose experts do not all fit in device memory. Device memory has *places*, each with room for the matrices of
// one expert; all experts are in pinned host memory, in the same form. After the choice of experts (experts.h), one kernel
// gives the chosen ones places and a second one fetches those that have none yet. The matrix kernels then read places as if
// they were experts, so results have the same bits for any number of places.
//
// A batch may choose more experts than there are places. It then takes several *rounds*: each one has places for some of
// the experts, and the matrix kernels compute the rows of these. The number of rounds is known beforehand
// (expert_rounds()), so no decision waits for the host and launches can be recorded as a graph.
//
// The first round takes the chosen experts that have places, and as many others as there is room for. A place whose expert takes
// part in the round is kept. The others are given away in the order of their last use, the least recent first (LRU), if the batch
// has one token; else those come first whose experts the batch chose least often. Experts without a place wait in the order of
// how often they were chosen, too: after a prompt, places have mostly the experts that it chose most often.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/runtime/kernel.h"

namespace runnel::kernels::cuda {

// The most places that a round gives away: later rounds of a prompt, which chooses most experts anyway, half of them.
constexpr int32_t most_fetched(int32_t round, int32_t pairs, int32_t experts, int32_t places) {
    const bool is_prompt = pairs >= 4 * experts;
    return round > 0 && is_prompt ? std::max(1, places / 2) : places;
}

// Rounds that suffice for a batch of `pairs` pairs: the first one computes as many experts as there are places.
constexpr int32_t expert_rounds(int32_t pairs, int32_t experts, int32_t places) {
    const int32_t chosen = std::min(pairs, experts), later = most_fetched(1, pairs, experts, places);
    return chosen <= places ? 1 : 1 + (chosen - places + later - 1) / later;
}

struct FetchedExpert {
    int32_t expert, place;
};

// What one mixture keeps from batch to batch.
struct PlaceCounts {
    uint64_t rounds;   // so far: the clock of PlaceExpertsParams::used_at
    uint64_t chosen;   // experts, counted once per batch
    uint64_t fetched;  // those of them that were fetched
};

// One block, with a thread per expert and per place.
struct PlaceExpertsParams {
    const int32_t *chosen;  // [pair]
    int32_t pairs, experts, places;
    int32_t round;  // from 0
    int32_t most;   // most_fetched()
    // Kept from batch to batch; -1 everywhere at first.
    int32_t *place_of;   // [experts]
    int32_t *expert_of;  // [places]
    // Likewise; 0 at first.
    uint64_t *used_at;  // [places]: PlaceCounts::rounds
    PlaceCounts *counts;
    // Of this batch.
    int32_t *done;  // [experts]: 1 if it took part in this round or an earlier one
    int32_t *here;  // [experts]: its place in this round, or -1
    FetchedExpert *fetched;
    int32_t *fetched_count;
};
Kernel<PlaceExpertsParams> place_experts_kernel();
inline constexpr size_t kPlaceExpertsShared = kMaxExperts * (8 + 7 * 4) + 16;

// Matrices or vectors, one per expert and one after the other.
struct FetchedPart {
    const std::byte *from;  // [expert]: in host memory, or (biases) in device memory
    std::byte *to;          // [place]
    int64_t bytes;          // of one expert: a multiple of 4
};
inline constexpr int kFetchedParts = 6;  // gate, up, down and their biases

// Any grid.
struct FetchExpertsParams {
    FetchedPart part[kFetchedParts];
    int32_t parts;
    const FetchedExpert *fetched;
    const int32_t *fetched_count;
};
Kernel<FetchExpertsParams> fetch_experts_kernel();

}  // namespace runnel::kernels::cuda
