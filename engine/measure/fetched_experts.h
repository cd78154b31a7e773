// How many experts a GPU would have to fetch for a text that holds only some of each layer at a time
// (kernels/cuda/experts/expert_places.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/decode/engine.h"
#include "engine/decode/stop_request.h"
#include "kernels/expert_trace.h"

namespace runnel::measure {

using kernels::ExpertTrace;

// The choices of the engine's model for a text, which another backend on the engine's devices computes. Without mixtures there
// are none, and nothing is computed. Throws base::Interrupted, and what Engine::another_backend() and SingleSequence::feed()
// throw. Precondition: the tokens fit the engine's context.
ExpertTrace trace_choices(decode::Engine &engine, std::span<const text::TokenId> tokens,
                          const decode::StopRequest &stop);

// Per token, of all mixtures together.
struct PlacesUse {
    double chosen = 0, fetched = 0;  // experts
    double fetched_bytes = 0;
    size_t held_bytes = 0;  // of the experts that the GPU holds
};

// Decodes the traced tokens one at a time with `places` places in each mixture, or as many as a token uses if that is more.
// All places are empty at first; the first `warm_up` tokens are not counted. Precondition: warm_up < trace.tokens().
PlacesUse simulate_places(const ExpertTrace &trace, int32_t places, size_t warm_up);

}  // namespace runnel::measure
