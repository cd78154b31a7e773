// The passes of an answer with speculative decoding, after its first token.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/completion/event.h"

namespace runnel::measure {

struct DraftTimeline {
    // Holds only tokens that are part of the answer, although the last pass may have given more. In each pass,
    // accepted <= tokens.size().
    std::vector<decode::DraftPass> passes;
    int64_t tokens = 0;             // of the answer, after the first
    int64_t guessed = 0;            // tokens that were verified
    int64_t accepted = 0;           // of these, tokens of the answer
    double seconds = 0;             // in the sources of drafts and in the passes
    std::optional<double> plain;    // median seconds of the passes without drafts; nullopt: there are none
    int64_t plain_passes = 0;       // of this answer
    std::optional<double> without;  // seconds without drafts: as many plain passes as tokens
};

// `done`: of a request with log_drafts.
DraftTimeline draft_timeline(const completion::Done &done);

}  // namespace runnel::measure
