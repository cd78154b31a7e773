// What the KV cache saves: compares a loop that recomputes the whole text for every token with cached
// decoding.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/decode/engine.h"
#include "engine/decode/stop_request.h"
#include "engine/measure/pass_cost.h"

namespace runnel::measure {

// The step that computes the token after a text of `length` tokens.
struct NaiveStep {
    int64_t length;
    double cached, naive;  // seconds
    PassCost cached_cost, naive_cost;
};

struct NaiveComparison {
    std::vector<NaiveStep> steps;  // of lengths 1, 2, 3 ...
    std::vector<text::TokenId> cached_text, naive_text;
    bool same() const { return cached_text == naive_text; }
    double cached_seconds() const;  // of all steps together
    double naive_seconds() const;
    // The exponent e of time ~ length^e over the second half of the lengths: 0 if a step's time does not depend
    // on the length.
    double cached_exponent() const;
    double naive_exponent() const;
    // The least length from which on every naive step took more than `factor` times its cached one; 0: none.
    int64_t slower_from(double factor) const;
};

// The slope of a least-squares line through (log x, log y). Preconditions: equally many x and y, all
// positive, with at least two different x.
double growth_exponent(const std::vector<double> &x, const std::vector<double> &y);

// Generates greedy texts of `tokens` > 1 tokens that start with BOS. Precondition: the engine has room for
// two sequences of tokens + 1 cells. `show` is called with the number of steps done. Throws
// base::Interrupted.
NaiveComparison compare_naive(decode::Engine &engine, int32_t tokens, decode::CacheTypes types,
                              const decode::StopRequest &stop, const std::function<void(int64_t)> &show = {});

}  // namespace runnel::measure
