#include "engine/commands/plot/plot_output.h"

#include "engine/commands/plot/svg.h"

namespace runnel::commands {

void check_plot_file(const std::string &path, const Io &io) {
    check_svg_file(path, "--plot", io);
}

void write_plot_file(const std::string &path, const Plot &plot, const Io &io) {
    if (!path.empty()) write_svg_file(path, svg_plot(plot), io);
}

}  // namespace runnel::commands
