// The roofline of a model on a device (Williams et al. 2009): operations per byte and speed of each phase,
// compared with the measured bandwidth and multiply rate.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "engine/decode/engine.h"
#include "engine/decode/single_sequence.h"
#include "engine/measure/pass_cost.h"
#include "engine/measure/speed.h"

namespace runnel::measure {

// Passes of one kind. Their cost is computed (pass_cost.h), their time measured.
struct RooflinePoint {
    std::string phase;  // "prefill", "decode"
    int64_t tokens;     // of a pass
    int64_t depth;      // cells before the first
    double seconds;     // per pass, the median
    PassCost cost;

    double rate() const { return cost.operations() / seconds; }  // operations per second
};

struct Roofline {
    double bandwidth = 0;      // bytes per second, the best reading
    std::string bandwidth_of;  // how it was measured
    bool in_cache = false;     // the weights fit in the CPU's cache, and `bandwidth` is the cache's
    double multiply_rate = 0;  // operations per second
    std::string multiply_of;
    std::vector<RooflinePoint> points;  // prefill passes of 1, 2, 4 ... tokens, then decoding
    int32_t prompt = 0, generate = 0;   // of the request that was timed
    double first_token = 0;             // seconds of its prefill
    std::vector<double> steps;          // seconds of each decoded token after the first

    // The most operations per second that memory and arithmetic allow at this number of operations per byte.
    double roof(double intensity) const;
    // The ridge point: with fewer operations per byte, memory is the limit.
    double ridge() const { return multiply_rate / bandwidth; }
    double decode_share() const;  // of the request's time
};

// The device's multiply rate in operations per second. On the CPU it is measured with the kernel for the most
// common weight format, on a part of a matrix that stays in the cache. 0 if there is no matrix.
double multiply_rate(const decode::Engine &engine, int threads, std::string &format);

struct RooflineOptions {
    int32_t prompt = 500, generate = 200;
    int32_t longest_pass = 2048;  // tokens of a prefill pass
    int32_t repetitions = 5;
    int threads = 1;
    CacheTypes types = {};
    std::function<void(const std::string &test)> show = [](const std::string &) {};
};

// Preconditions: the engine runs on one device, `limits` belong to that device, and the context holds prompt
// + generate tokens and longest_pass tokens. Throws base::Interrupted.
Roofline measure_roofline(const RooflineOptions &options, decode::Engine &engine, DeviceLimits &limits,
                          const StopRequest &stop);

}  // namespace runnel::measure
