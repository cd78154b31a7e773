// The token that follows a text: from the largest logits of a row, where the device selected them and they
// decide, and otherwise from the whole row.
#pragma once

#include <span>

#include "engine/decode/logit_rows.h"
#include "engine/decode/sampler.h"
#include "engine/decode/session.h"

namespace runnel::decode {

// Before the session computes: what the functions below will need with this sampler, of each of its rows.
inline void prepare_next(Session &session, const Sampler &sampler) {
    session.want_candidates(sampler.candidates_needed(session.executor().most_candidates()));
}

// What Sampler::sample and Sampler::distribution give for the row. Throw what those do, and BackendError.
TokenId sample_next(const LogitRow &row, std::span<const TokenId> history, Sampler &sampler);
const Distribution &distribution_of_next(const LogitRow &row, std::span<const TokenId> history,
                                         Sampler &sampler);

}  // namespace runnel::decode
