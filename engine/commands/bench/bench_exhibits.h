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

// A table or JSON, as `options` says; a terminal gets the plot, too. Throws what bench() does.
int bench_roofline(const BenchOptions &options, const std::string &plot, Io &io);
int bench_naive(const BenchOptions &options, const std::string &plot, Io &io);
int bench_profile(const BenchOptions &options, const std::string &plot, Io &io);

// "test" on a terminal's line of progress; an empty one clears the line.
void show_progress(Io &io, const std::string &test);
// Throws UsageError where `options` asks for what `mode` does not show.
void check_exhibit(const BenchOptions &options, const std::string &mode);

}  // namespace runnel::commands
