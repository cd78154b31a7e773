// The unfinished answers of one beam search of a CompletionQueue.
#pragma once

#include <memory>
#include <vector>

#include "engine/completion/beams.h"
#include "engine/completion/event.h"
#include "engine/completion/text_channels.h"
#include "gguf/base/timer.h"

namespace runnel::completion {

struct BeamAnswer {
    // Call after each step of the scheduler, with the time when the step began. False when the search is over.
    bool advance(base::Clock::time_point step_began, std::vector<Event> &events);
    // Appends the pieces and the Done of every beam; for a failed search, only one Done.
    void finish(FinishReason reason, std::vector<Event> &events) const;

    RequestId id;
    std::unique_ptr<BeamSearch> search;
    TextChannels channels;
    base::Clock::time_point submitted;
    Done done;  // what the Done of all beams have in common
};

}  // namespace runnel::completion
