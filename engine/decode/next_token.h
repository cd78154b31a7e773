// Samples the token that follows a text: from the largest logits of a row if the device selected them and
// they are enough, otherwise from the whole row.
#pragma once

#include <span>

#include "engine/decode/logit_rows.h"
#include "engine/decode/sampler.h"
#include "engine/decode/scheduled_sequence.h"

namespace runnel::decode {

// Call before a pass: requests as much of each row as the functions below need with this sampler.
inline void prepare_next(ScheduledSequence &entry, const Sampler &sampler) {
    entry.want_candidates(sampler.candidates_needed(entry.executor().most_candidates()));
}

// Sampler::sample and Sampler::distribution for the row. They throw what these do, and BackendError.
TokenId sample_next(const LogitRow &row, std::span<const TokenId> history, Sampler &sampler);
const Distribution &distribution_of_next(const LogitRow &row, std::span<const TokenId> history,
                                         Sampler &sampler);

}  // namespace runnel::decode
