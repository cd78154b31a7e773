// Where the time of one request goes: prefill and decode by kind of step and by layer, with the sampler and what is
// left between the passes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/decode/engine.h"
#include "engine/decode/stop_request.h"
#include "engine/measure/pass_cost.h"

namespace runnel::measure {

struct ProfilePart {
    // "matrix", "attention", "norm", ... (the names of steps in kernels/cpu/phase_clock.cpp), "pass" (the time of a
    // pass outside its steps; on a GPU, all of it), "sampler" or "other".
    std::string kind;
    int64_t count = 0;   // number of occurrences
    double seconds = 0;  // from the start of the first thread to the end of the last
    double waited = 0;   // the part of `seconds` spent waiting for the slowest thread; mean over the threads
};

struct PhaseProfile {
    int64_t passes = 0, tokens = 0;
    double seconds = 0;              // of the queue's steps in this phase: the sum over `parts`
    std::vector<ProfilePart> parts;  // the longest first
    std::vector<double> layers;      // seconds by layer of the model; empty if not known
    PassCost cost;                   // of all passes

    double seconds_of(const std::string &kind) const;
    double waited() const;
};

struct Profile {
    PhaseProfile prefill, decode;
};

struct ProfileOptions {
    int32_t prompt = 512, generate = 128;  // tokens; generate >= 2
};

// One request of random tokens, after a pass that brings the weights into memory. Precondition: the context holds
// prompt + generate tokens. Throws base::Interrupted.
Profile measure_profile(const ProfileOptions &options, decode::Engine &engine,
                        const decode::StopRequest &stop);

}  // namespace runnel::measure
