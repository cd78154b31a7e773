// Keys and values of drafting layers beside a model: computed when a draft needs them, from the tokens and hidden states that
// the model's passes left (hidden_states.h).
//
// They are in cache blocks with the same numbers as the model's (HiddenStates::group), so the model's block tables serve all,
// and shared prefixes, forks and roll-backs need no code of their own. A draft writes to blocks of its own, because the last
// block of a sequence may be shared with others that go on differently.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/cache/paged_cache.h"
#include "engine/decode/executor.h"
#include "engine/decode/hidden_states.h"
#include "kernels/backend.h"

namespace runnel::decode {

class DraftCells {
  public:
    // Of drafts for up to `sequences` sequences at a time, in passes of up to `batch` tokens.
    DraftCells(std::shared_ptr<HiddenStates> states, int32_t batch, int32_t sequences);

    // The cache of the layers: `target` is the model's executor.
    kernels::CacheConfig cache(const Executor &target) const;

    // A sequence that is drafted for.
    struct Place {
        const cache::SequenceCache *cache;
        std::vector<kernels::BlockId> table;  // the sequence's, up to the blocks that the draft writes to
    };
    // sequence: below `sequences`, another one for every sequence of a pass.
    Place place(const cache::SequenceCache &cache, size_t sequence) const;
    // The cells of the sequence before those of the draft.
    int32_t length(const cache::SequenceCache &cache) const { return cache.length() - ahead_; }
    std::span<const kernels::BlockId> table(const cache::SequenceCache &cache) const {
        return cache.table(states_->group());
    }

    // Computes the cells that the sequences lack in layers number `block` (HiddenStates::is_marked), which are loaded in
    // `backend`; `state`: the slot that they read. False when a stop was requested. Throws BackendError.
    bool fill(kernels::Backend &backend, kernels::Slot state, size_t block,
              std::span<const Place *const> sequences, const std::atomic<bool> *cancel);
    // Copies the cells of the last blocks to where drafts go on, before the next execute() of `backend`.
    void copy_ends(kernels::Backend &backend, std::span<const Place *const> sequences) const;

  private:
    bool compute_missing(kernels::Backend &backend, kernels::Slot state, size_t block,
                         std::span<const Place *const> sequences, const std::atomic<bool> *cancel,
                         bool &found);

    std::shared_ptr<HiddenStates> states_;
    int32_t ahead_;   // the token of cell c is that of cell c + ahead_ of the model
    int32_t behind_;  // and the state that of cell c - behind_
    int32_t batch_, sequences_;
    kernels::BlockId own_;  // the first of the drafts' blocks
};

}  // namespace runnel::decode
