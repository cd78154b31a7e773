// The scale searches of llama.cpp's quantizers: they minimize a weighted squared error over a group of values.
// Internal to gguf/.
//
// The output bytes depend on every rounding: every product and sum is rounded to float32, sums run in index
// order, candidates are tried in a fixed order, and only a strictly better one replaces the best. Written from
// a description of the algorithms; tests/gguf/standard_quantize_test.cpp has hashes of llama.cpp's output.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace runnel::gguf {

// Largest group: the 32 weights of a block, or the 16 scales of a super-block.
inline constexpr int kLargestGroup = 32;

// Rounds to the nearest integer, ties to even, for |x| < 2^22; defined but meaningless for all other x.
inline int nearest_int(float x) {
    const float shifted = x + 12582912.0f;  // 1.5 * 2^23: no bits are left for a fraction
    return (std::bit_cast<int32_t>(shifted) & 0x007fffff) - 0x00400000;
}

// x ~ scale * level - minimum.
struct ScaleAndMinimum {
    float scale, minimum;
};

// x ~ scale * level with levels in -top..top-1: tries 19 steps around the scale that maps the extreme value
// to -top. `weights` may be empty: x^2 then. Returns the scale; writes levels plus `top`.
float search_symmetric(std::span<const float> x, int top, std::span<const float> weights, int8_t *levels);

// As search_symmetric(), but by coordinate descent from its first step, weighted by x^2 (Q3_K, no importance).
float descend_symmetric(std::span<const float> x, int top, int8_t *levels);

// x ~ scale * level with levels in 0..top, for x >= 0 (the scales and minimums of a super-block). The level of a
// negative x counts as negative in the sums; `levels`, which later rounds read, gets its low byte (for IQ2_XXS).
float search_positive(std::span<const float> x, int top, std::span<const float> weights, uint8_t *levels);

// Candidates of search_affine: levels reach top + first, top + first + step, ... over the range of the values.
struct AffineCandidates {
    float first, step;
    int last;  // number of the last candidate, from 0
    bool absolute_error = false;
};

// x ~ scale * level - minimum with levels in 0..top and minimum >= 0.
ScaleAndMinimum search_affine(std::span<const float> x, int top, std::span<const float> weights,
                              AffineCandidates candidates, uint8_t *levels);

}  // namespace runnel::gguf
