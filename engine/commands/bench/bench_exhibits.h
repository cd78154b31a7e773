// The modes of `bench` that show one effect with a table and a plot.
#pragma once

#include <cstdint>
#include <string>

#include "engine/commands/io.h"
#include "engine/commands/options.h"

namespace runnel::commands {

struct ExhibitOptions {
    bool roofline = false, naive = false, profile = false;  // one at most
    std::string plot;                                       // an SVG file; empty: none
    bool any() const { return roofline || naive || profile; }
};

// Prints a table or JSON, as `options` says; on a terminal also the plot. Throws what bench() throws.
int bench_roofline(const BenchOptions &options, const std::string &plot, Io &io);
int bench_naive(const BenchOptions &options, const std::string &plot, Io &io);
int bench_profile(const BenchOptions &options, const std::string &plot, Io &io);

// Shows the name of the running test on a terminal; an empty name clears the line.
void show_progress(Io &io, const std::string &test);
// Throws UsageError if `options` has settings that `mode` does not support.
void check_exhibit(const BenchOptions &options, const std::string &mode);

}  // namespace runnel::commands
