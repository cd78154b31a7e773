// The roofline of a model on a device (Williams et al. 2009): each phase's operations per byte and speed,
// against the bandwidth and the multiply rate that were measured beside it.
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

// Passes of one kind: their cost is counted (pass_cost.h), their time measured.
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
    bool in_cache = false;     // the weights fit in the CPU's cache, whose bandwidth this is
    double multiply_rate = 0;  // operations per second
    std::string multiply_of;
    std::vector<RooflinePoint> points;  // prefill passes of 1, 2, 4 ... tokens, then decoding
    int32_t prompt = 0, generate = 0;   // of the request that was timed
    double first_token = 0;             // seconds of its prefill
    std::vector<double> steps;          // seconds of each decoded token after the first

    // The most operations per second that memory and arithmetic allow.
    double roof(double intensity) const;
    // Operations per byte where both limit alike: below, memory does.
    double ridge() const { return multiply_rate / bandwidth; }
    double decode_share() const;  // of the request's time
};

// Operations per second of this device's kernel for the model's matrices: on the CPU that of the format of most
// of its weights, on a part of such a matrix that stays in the cache. 0 if there is no matrix.
double multiply_rate(const decode::Engine &engine, int threads, std::string &format);

struct RooflineOptions {
    int32_t prompt = 500, generate = 200;
    int32_t longest_pass = 2048;  // tokens of a prefill pass
    int32_t repetitions = 5;
    int threads = 1;
    CacheTypes types = {};
    std::function<void(const std::string &test)> show = [](const std::string &) {};
};

// Precondition: the engine runs on one device, and its context holds prompt + generate and longest_pass tokens;
// `limits` are of that device. Throws base::Interrupted.
Roofline measure_roofline(const RooflineOptions &options, decode::Engine &engine, DeviceLimits &limits,
                          const StopRequest &stop);

}  // namespace runnel::measure
