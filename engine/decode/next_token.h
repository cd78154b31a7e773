// The token that follows a session's text: from the largest logits, where the device selected them and they
// decide, and otherwise from the whole row.
#pragma once

#include "engine/decode/sampler.h"
#include "engine/decode/session.h"

namespace runnel::decode {

// Before the session computes: what sample_next() with this sampler will need.
inline void prepare_next(Session &session, const Sampler &sampler) {
    session.want_candidates(sampler.candidates_needed(session.executor().most_candidates()));
}

// The token that Sampler::sample draws from the row. Precondition: the session has logits or candidates.
// Throws what that does, and BackendError.
TokenId sample_next(const Session &session, Sampler &sampler);

}  // namespace runnel::decode
