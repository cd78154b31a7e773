// The commands, one function and one file each. They return the exit code; errors are thrown (io.h and the
// exceptions of the layers below), and main.cpp turns them into a line on stderr.
#pragma once

#include <string>

#include "engine/commands/io.h"
#include "engine/commands/options.h"

namespace runnel::commands {

namespace mcp {
class Servers;
}

int run(const RunOptions &options, Io &io);
int batch(const BatchOptions &options, Io &io);
// `servers`: null without --mcp.
int chat(const ChatOptions &options, mcp::Servers *servers, Io &io);
int inspect(const InspectOptions &options, Io &io);
int render_template(const TemplateOptions &options, Io &io);
int tokenize(const TokenizeOptions &options, Io &io);
int perplexity(const PerplexityOptions &options, Io &io);
// `perplexity` with a file of multiple-choice tasks.
int choice_scores(const PerplexityOptions &options, Io &io);
int bench(const BenchOptions &options, Io &io);
int bench_text(const BenchOptions &options, Io &io);
int doctor(const DoctorOptions &options, Io &io);
int devices(const DevicesOptions &options, Io &io);

// `inspect FIRST --diff SECOND`: prints metadata and tensors that differ, with "-" for what one of them lacks.
int inspect_difference(const std::string &first, const std::string &second, bool as_json, Io &io);

// Prints `inspect --supported`.
int print_supported(bool as_json, Io &io);

// "runnel COMMIT ..." in a few lines: commit, instruction set in use, compiled devices.
std::string version();

}  // namespace runnel::commands
