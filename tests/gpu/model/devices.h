// Devices of the cost model: published figures, each with its source.
#pragma once

#include <array>
#include <span>
#include <string>

#include "tests/gpu/model/code.h"

namespace runnel::tests::model {

// The three cases of every estimate. Optimistic: each figure at the end of its range that gives the shortest time.
enum class Case { Optimistic, Middle, Pessimistic };
inline constexpr Case kCases[] = {Case::Optimistic, Case::Middle, Case::Pessimistic};

// A figure with its range, from the best for speed to the worst.
struct Range {
    double best, middle, worst;
    double at(Case c) const { return c == Case::Optimistic ? best : c == Case::Middle ? middle : worst; }
};

// Clocks of a scheduler (a quarter of a multiprocessor) per instruction of a warp, by Pipe.
using PipeClocks = std::array<double, kPipes>;

struct Device {
    std::string name;
    int code;  // architecture of the machine code that runs on it: 90
    int multiprocessors;
    Range clock;       // GHz under load
    Range read;        // GB/s of a stream of reads
    double in_flight;  // bytes per multiprocessor under way that the middle of `read` needs
    Range boundary;    // microseconds between two dependent launches in a graph
    double memory;     // GB
    int shared, l2;    // KB of shared memory of a multiprocessor, MB
    PipeClocks clocks;
    std::string source;
};

std::span<const Device> devices();
const Device &device(const std::string &name);  // throws std::out_of_range

}  // namespace runnel::tests::model
