#include "engine/commands/plot/plot_output.h"

#include <span>

#include "gguf/output_file.h"

namespace runnel::commands {
namespace {

gguf::OutputOptions output_options(const Io &io) {
    return {.overwrite = io.overwrite, .own = "<svg xmlns"};
}

}  // namespace

void check_plot_file(const std::string &path, const Io &io) {
    if (path.empty()) return;
    if (!path.ends_with(".svg")) throw UsageError("--plot writes SVG: the file's name must end with .svg");
    gguf::check_output(path, output_options(io));
}

void write_plot_file(const std::string &path, const Plot &plot, const Io &io) {
    if (path.empty()) return;
    const std::string svg = svg_plot(plot);
    gguf::OutputFile file(path, output_options(io));
    file.write(std::as_bytes(std::span(svg)));
    file.commit();
}

}  // namespace runnel::commands
