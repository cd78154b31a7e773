// Four floats at a time, for the inner loops of the quantizers: compiles to the build's baseline
// instructions, and sums in one fixed order at every optimization level. Internal to gguf/.
#pragma once

#include <cstring>

namespace runnel::gguf {

using Lanes = float __attribute__((vector_size(16)));

inline Lanes load_lanes(const float *from) {
    Lanes lanes;
    std::memcpy(&lanes, from, sizeof lanes);
    return lanes;
}

// Rounds to the nearest integer, ties to even, for |x| < 2^22: adding 1.5 * 2^23 leaves no bits for a fraction.
inline Lanes round_lanes(Lanes x) {
    return (x + 12582912.0f) - 12582912.0f;
}

// Replaces values outside [lo, hi], and NaN, by one of its ends.
inline Lanes clamp_lanes(Lanes x, float lo, float hi) {
    const Lanes low = {lo, lo, lo, lo}, high = {hi, hi, hi, hi};
    x = x > low ? x : low;
    return x < high ? x : high;
}

inline float sum_lanes(Lanes x) {
    return (x[0] + x[2]) + (x[1] + x[3]);
}

}  // namespace runnel::gguf
