// Passes that nobody needs, to see how long they take.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/decode/session.h"
#include "engine/decode/stop_request.h"

namespace runnel::decode {

// Behind the tokens that a session has in the cache, on a fork of it: the session is as before.
class PassTrial {
  public:
    explicit PassTrial(const Session &session);

    // Of a pass of `tokens`, with logits behind each, whole rows or candidates as the session wants them.
    // nullopt where there is no room, or a stop was requested. Throws BackendError.
    std::optional<double> seconds_of(int32_t tokens, const StopRequest *stop);

  private:
    Executor &executor_;
    SequenceCache cache_;
    int32_t depth_;
    TokenId token_;
    int32_t wanted_candidates_;
    StepOutput output_;
};

}  // namespace runnel::decode
