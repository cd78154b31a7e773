// Writes the plot of a command to the file of --plot.
#pragma once

#include <string>

#include "engine/commands/io.h"
#include "engine/commands/plot/plot.h"

namespace runnel::commands {

// Call before the computation: throws gguf::OutputRefused if the file must not be written. An empty path: no
// file.
void check_plot_file(const std::string &path, const Io &io);

// Throws gguf::WriteError.
void write_plot_file(const std::string &path, const Plot &plot, const Io &io);

}  // namespace runnel::commands
