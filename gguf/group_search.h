// The scale searches of scale_search.h for many groups at once: each vector lane runs the scalar search on a group
// of its own, so every operation keeps its order and rounding, and the results are the same bits. Internal to gguf/.
//
// The code is compiled for several instruction sets; tests/gguf/group_search_test.cpp compares them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gguf/scale_search.h"

namespace runnel::gguf {

// How a group's values are weighted when no weights are given.
enum class Weighting {
    Given,
    Magnitude,         // |x|
    RmsPlusMagnitude,  // sqrt(mean of x^2 over the group) + |x|
    Square,            // x^2
};

// Groups that lie one after another: x [count][size], weights likewise, or null unless Weighting::Given.
struct Groups {
    const float *x;
    const float *weights;
    Weighting weighting;
    size_t count;
    int size;  // a multiple of 4, at most kLargestGroup
};

struct GroupSearch {
    const char *name;  // "scalar", "avx2", "avx512"
    // search_affine(), search_symmetric() and descend_symmetric() of each group; levels [count][size].
    // The first takes Given, Magnitude or RmsPlusMagnitude, the second Given or Square, the third Square.
    void (*affine)(const Groups &groups, int top, AffineCandidates candidates, uint8_t *levels,
                   ScaleAndMinimum *lines);
    void (*symmetric)(const Groups &groups, int top, int8_t *levels, float *scales);
    void (*descend)(const Groups &groups, int top, int8_t *levels, float *scales);
    // search_positive() of groups with given weights.
    void (*positive)(const Groups &groups, int top, uint8_t *levels, float *scales);
    // Levels of n values for a known scale: clamp(nearest_int((x + minimum) / scale), low, high) - low.
    void (*round)(const float *x, int n, ScaleAndMinimum line, int low, int high, uint8_t *levels);
    // importance * sqrt(variance + x^2).
    void (*weigh)(const float *x, const float *importance, float variance, int n, float *weights);
    // f16_to_f32() of n numbers at any address.
    void (*from_f16)(const std::byte *numbers, float *out, int64_t n);
};

// The first returns the fastest that this processor supports. The last two return null if it lacks their instructions.
const GroupSearch &group_search();
const GroupSearch &group_search_scalar();
const GroupSearch *group_search_avx2();
const GroupSearch *group_search_avx512();

}  // namespace runnel::gguf
