// Samples the token that follows a text: from the largest logits of a row if the device selected them and
// they are enough, otherwise from the whole row.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "engine/decode/logit_rows.h"
#include "engine/decode/sampler.h"
#include "engine/decode/scheduled_sequence.h"

namespace runnel::decode {

// Call before a pass: requests as much of each row as the functions below need with this sampler, which must stay
// where it is until the pass has run.
inline void prepare_next(ScheduledSequence &entry, Sampler &sampler) {
    RowMask mask;
    if (sampler.constraint())
        mask = [&sampler](std::span<const TokenId> history, std::span<uint64_t> bits) {
            return sampler.mask(history, bits);
        };
    entry.want_candidates(sampler.candidates_needed(entry.executor().most_candidates()), std::move(mask));
}

// Sampler::sample and Sampler::distribution for the row. They throw what these do, and BackendError.
TokenId sample_next(const LogitRow &row, std::span<const TokenId> history, Sampler &sampler);
const Distribution &distribution_of_next(const LogitRow &row, std::span<const TokenId> history,
                                         Sampler &sampler);

}  // namespace runnel::decode
