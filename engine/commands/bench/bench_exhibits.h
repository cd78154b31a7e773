// The modes of `bench` that show one effect with a table and a plot.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/commands/cli/option.h"
#include "engine/commands/io.h"
#include "engine/commands/options.h"

namespace runnel::commands {

struct ExhibitOptions {
    bool roofline = false, naive = false, profile = false, batching = false, attention = false,
         experts = false;  // one at most
    std::string plot;      // an SVG file; empty: none
    // Of --batching:
    std::vector<double> rates;         // requests per second; empty: one arrives when another is finished
    int32_t requests = 0;              // of each row; 0: as many as the row needs
    uint64_t seed = 1;                 // of the arrivals
    std::vector<std::string> compare;  // further models
    bool compare_lists = false;        // compare the combinations of lists (-ctk f16,q8_0)
    std::string trace;                 // a file of requests to replay
    double step_ms = 20;               // of --trace: the time of a step
    int chosen() const {
        return roofline + naive + profile + batching + attention + experts + compares() + !trace.empty();
    }
    bool compares() const { return !compare.empty() || compare_lists; }
};

// Adds -pg P,G to a table of options.
void add_prompt_and_answer(OptionTable &table, BenchOptions &options, std::string_view help);

// Prints a table or JSON, as `options` says; on a terminal also the plot. Throws what bench() throws.
int bench_roofline(const BenchOptions &options, const std::string &plot, Io &io);
int bench_naive(const BenchOptions &options, const std::string &plot, Io &io);
int bench_profile(const BenchOptions &options, const std::string &plot, Io &io);
int bench_attention(const BenchOptions &options, const std::string &plot, Io &io);
int bench_experts(const BenchOptions &options, const std::string &plot, Io &io);
int bench_batching(const BenchOptions &options, const ExhibitOptions &exhibit, Io &io);
int bench_compare(const BenchOptions &options, const ExhibitOptions &exhibit, Io &io);
int bench_trace(const BenchOptions &options, const ExhibitOptions &exhibit, Io &io);

// Shows the name of the running test on a terminal; an empty name clears the line.
void show_progress(Io &io, const std::string &test);
// Options that not all modes take: -pg, --sequences, -d, -n, and lists of model options.
struct Takes {
    bool both = true, sequences = false, depths = false, generates = false, lists = false;
};
// Throws UsageError if `options` has settings that `mode` does not support.
void check_exhibit(const BenchOptions &options, const std::string &mode, Takes takes = {});

}  // namespace runnel::commands
