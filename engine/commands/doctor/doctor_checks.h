// Checks a device with the cases of doctor_cases.h: against the reference, for repeatability, for other
// batch sizes, and for speed.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/commands/doctor/doctor_cases.h"
#include "engine/commands/doctor/doctor_report.h"
#include "kernels/backend.h"

namespace runnel::commands {

struct CheckedDevice {
    Finding::Area area;
    std::function<std::unique_ptr<kernels::Backend>()> make;
    double least_tolerance = 0;   // minimum for StepCase::rounded; the CPU's activations have 8 bits
    double bytes_per_second = 0;  // bandwidth of its memory; 0: matrices are not measured
    // A backend with which the device must agree to the bit, except for matrices, whose check would take
    // long: for the CPU, its scalar instruction set. Empty: none.
    std::function<std::unique_ptr<kernels::Backend>()> same_bits = {};
};

// Computes the case with all tokens in one batch, twice, and then in small batches, and compares with the
// reference (kernels/reference/). Never throws for errors of the device. Verdicts: Right, Wrong (with the
// error), Unstable, Varies, Skipped (no kernel), Failed.
Finding check(const StepCase &step, const CheckedDevice &device);

// Measures a matrix that is Right with one token and adds the speed to `finding`; the verdict becomes Slow
// below kSlow of the memory's bandwidth, if the matrix is large enough to be limited by the bandwidth.
inline constexpr double kSlow = 0.4;
inline constexpr size_t kLargeMatrix = size_t{4} << 20;  // bytes
void measure(const StepCase &step, const kernels::Program &program, const CheckedDevice &device,
             Finding &finding);

// |a - b| / |b|, of all values and of the worst of `columns`; infinite if a value is not
// finite.
struct Distance {
    double all, worst_column;
};
Distance distance(std::span<const float> a, std::span<const float> b, int64_t columns);

}  // namespace runnel::commands
