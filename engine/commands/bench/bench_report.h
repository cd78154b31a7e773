// The results of `bench` in every output format.
#pragma once

#include <string>
#include <vector>

#include "engine/commands/options.h"
#include "engine/measure/speed.h"

namespace runnel::commands {

// The results for one combination of the listed options.
struct BenchRun {
    ModelOptions model;
    int threads;  // of the CPU, as used
    std::string device, placement;
    double load_seconds;
    double bandwidth;          // bytes per second, the median of the readings
    std::string bandwidth_of;  // how it was measured
    double tensor_rate;        // operations per second; 0: not known
    size_t cache;              // bytes of the CPU's last-level cache; 0: not known, or a GPU
    std::vector<measure::SpeedRow> rows;
};

// `runs` is not empty.
std::string report(const std::vector<BenchRun> &runs, const BenchOptions &options);

}  // namespace runnel::commands
