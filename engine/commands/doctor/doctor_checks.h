// What a device makes of the cases of doctor_cases.h: right or wrong against the reference, the same again,
// the same for other batches, and how fast.
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
    double least_tolerance = 0;   // of StepCase::rounded; the CPU's activations have 8 bits
    double bytes_per_second = 0;  // that its memory gives; 0: matrices are not measured
    // A device whose bits it must give, but for matrices, which take other devices long: of the CPU, its
    // plainest instruction set. None: no other device is promised to give the same bits.
    std::function<std::unique_ptr<kernels::Backend>()> same_bits = {};
};

// Computes the case with all tokens in one batch, twice, and then in small ones, and holds that against plain
// arithmetic (kernels/reference/); never throws for what the device does. Verdicts: Right, Wrong (with the
// error), Unstable, Varies, Skipped (there is no kernel), Failed.
Finding check(const StepCase &step, const CheckedDevice &device);

// Of a matrix that is Right: how fast one token is multiplied, into `finding`; Slow below kSlow of the
// memory's speed, where the matrix is large enough for that to be its limit.
inline constexpr double kSlow = 0.4;
inline constexpr size_t kLargeMatrix = size_t{4} << 20;  // bytes
void measure(const StepCase &step, const kernels::Program &program, const CheckedDevice &device,
             Finding &finding);

// "NaN", "3.1e-05": |a - b| / |b|, of all, and of the worst column of `columns`. What is not finite makes it
// infinite.
struct Distance {
    double all, worst_column;
};
Distance distance(std::span<const float> a, std::span<const float> b, int64_t columns);

}  // namespace runnel::commands
