// Programs of others on known devices: what they measured, and what the model says of them. One constant (the cost
// of a boundary) is fitted per program and holds for all of its models and devices.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tests/gpu/model/cost.h"

namespace runnel::tests::model {

struct CalibrationPoint {
    std::string program, model, device;
    double measured;   // tokens per second
    double bytes;      // read per token
    int boundaries;    // launches, or phases of a persistent kernel
    double tolerance;  // relative
};

// A program's cost of a boundary in microseconds, fitted. Throws std::out_of_range for an unknown program.
double boundary_of(const std::string &program);

std::vector<CalibrationPoint> calibration_points();

// Tokens per second by the model, with the middle of the device's row, or `read` GB/s instead of its rate.
double modeled(const CalibrationPoint &point, double boundary_us, double read = 0);

// A run of this program on a device (tests/gpu/results/).
struct MeasuredRun {
    std::string model;
    FileType type;
    std::string device;
    double measured;  // tokens per second of one sequence
};
std::vector<MeasuredRun> measured_runs();

// What a step of 8 sequences took, in steps of one, in the same run.
struct MeasuredBatch {
    std::string model;
    FileType type;
    std::string device;
    std::vector<double> steps;  // one per run
};
inline constexpr int kMeasuredSequences = 8;
std::vector<MeasuredBatch> measured_batches();

}  // namespace runnel::tests::model
