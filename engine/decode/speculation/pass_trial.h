// Timing probes: dummy passes that measure the cost of a pass per number of tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/decode/sequence.h"
#include "engine/decode/stop_request.h"

namespace runnel::decode {

// Runs passes on a fork of a sequence, after its cached tokens. The sequence itself does not change.
class PassTrial {
  public:
    // `candidates`: how many of the largest logits of each row are selected; 0: whole rows.
    explicit PassTrial(const Sequence &sequence, int32_t candidates = 0);

    // Seconds of a pass of `tokens` tokens, with logits for each; nullopt if there is no room, or a stop was
    // requested. Throws BackendError.
    std::optional<double> seconds_of(int32_t tokens, const StopRequest *stop);

  private:
    Executor &executor_;
    SequenceCache cache_;
    int32_t depth_;
    TokenId token_;
    int32_t candidates_;
    StepOutput output_;
};

}  // namespace runnel::decode
