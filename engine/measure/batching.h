// Throughput and latency of requests that are answered several at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/decode/engine.h"
#include "engine/decode/stop_request.h"

namespace runnel::measure {

// How the requests of a test arrive. Times are in seconds.
struct BatchingLoad {
    int32_t parallel = 1;  // answers computed at a time; other requests wait
    double rate = 0;       // requests per second, a Poisson process; 0: one arrives when another is finished
    int32_t requests = 8;
    int32_t prompt = 64, generate = 32;  // tokens of each request; generate >= 2
    uint64_t seed = 1;                   // of the arrivals and of the prompts, which are random tokens
    uint32_t prompts = 0;                // tests of the same engine with other numbers have other prompts
};

// One request, in seconds after the first arrival.
struct RequestTimes {
    double arrival = 0;
    double wait = 0;                   // from the arrival to its first pass
    double first_token = 0;            // from the arrival: TTFT
    std::vector<double> between = {};  // from each token to the next: TPOT
    double end() const;
};

struct BatchingRow {
    BatchingLoad load;
    std::vector<RequestTimes> requests;
    double seconds = 0;                                 // from the first arrival to the last token
    int64_t steps = 0, sequences = 0, preemptions = 0;  // sequences: summed over the steps

    double requests_per_second() const;
    double tokens_per_second() const;  // of the answers
    double sequences_per_step() const;
    std::vector<double> waits() const, first_tokens() const, token_times() const;
};

// When the requests arrive: 0, and then gaps of a Poisson process. Another rate scales the same arrivals.
std::vector<double> arrivals(int32_t requests, double rate, uint64_t seed);

// Answers the requests in real time. No two begin with the same block, also in tests that differ in
// BatchingLoad::prompts: nothing is found in the cache. Calls `show` with the number of
// finished requests. Throws base::Interrupted, DecodeError and BackendError.
BatchingRow measure_batching(decode::Engine &engine, const BatchingLoad &load,
                             const decode::StopRequest &stop, const std::function<void(int32_t)> &show = {});

}  // namespace runnel::measure
