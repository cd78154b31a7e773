#include "engine/commands/quantize/imatrix.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/commands/figures.h"
#include "engine/commands/generation.h"
#include "engine/commands/quantize/calibration_text.h"
#include "engine/commands/quantize/model_output.h"
#include "engine/model/model.h"
#include "engine/quantize/importance_sums.h"
#include "engine/quantize/mix.h"
#include "engine/text/tokenizer.h"
#include "gguf/output_file.h"
#include "gguf/printable.h"
#include "kernels/activation_run.h"

namespace runnel::commands {
namespace {

using quantize::ImportanceStatistics;
using quantize::ImportanceSums;

// Experts with fewer rows than this have no reliable importance.
constexpr int64_t kFewRows = 16;

void check(const ImatrixOptions &o) {
    if (!o.shown.empty()) {
        if (!o.text.empty() || !o.output.empty() || !o.merged.empty())
            throw UsageError("--show can only be combined with --json");
        return;
    }
    if (o.output.empty()) throw UsageError("give the file to write with -o FILE (or --show FILE)");
    if (o.model.empty() && o.merged.empty())
        throw UsageError("give MODEL and its text with -f FILE, or files with --merge");
    if (!o.model.empty() && o.text.empty()) throw UsageError("give the text with -f FILE");
    if (o.chunks == 0) throw UsageError("--chunks: at least 1, or -1 for all");
}

// Adds the importance of the text to `sums`.
void measure(const ImatrixOptions &options, const decode::StopRequest &stop, Io &io, ImportanceSums &sums) {
    const gguf::File file = gguf::File::open(options.model);
    const model::Model model = model::build(file, options.chunk_size);
    const text::Tokenizer tokenizer = text::Tokenizer::load(file);
    const std::vector<text::TokenId> tokens =
        chunks_of({options.text, options.chunk_size, options.chunks}, tokenizer, stop, io);
    const auto size = static_cast<size_t>(options.chunk_size);
    const auto chunks = static_cast<int64_t>(tokens.size() / size);
    ImportanceSums own;
    own.chunk_size = options.chunk_size;
    own.datasets = {options.text == "-" ? "stdin" : options.text};
    // Matrices that a model family computes are not in the file.
    const auto sink = [&](std::string_view tensor, int64_t matrix, int64_t matrices,
                          std::span<const float> input) {
        if (file.find_tensor(tensor)) own.add(tensor, matrix, matrices, input);
    };
    const kernels::DevicePtr cpu = kernels::cpu_device(options.threads);
    kernels::ActivationRun run(model.program, *cpu, options.chunk_size, options.with_output, sink);
    CountBar progress("imatrix", "chunks", chunks, io);
    for (; own.chunks < chunks; ++own.chunks) {
        progress.update(own.chunks);
        const auto chunk = std::span(tokens).subspan(static_cast<size_t>(own.chunks) * size, size);
        if (!run.run(chunk, stop.flag())) throw Interrupted{};
    }
    sums.merge(own);
}

// Notes in one line how many experts the text hardly reaches.
void warn_of_experts(const ImportanceSums &sums, Io &io) {
    size_t unmet = 0, few = 0;
    for (const auto &[name, entry] : sums.entries)
        for (const int64_t count : entry.counts) {
            unmet += count == 0;
            few += count > 0 && count < kFewRows;
        }
    if (unmet + few > 0)
        io.note("matrices of experts: " + std::to_string(unmet) + " got no token, " + std::to_string(few) +
                " got fewer tokens than " + std::to_string(kFewRows) + ": use a longer or more varied text");
}

std::string table(const ImportanceSums &sums) {
    char line[256];
    std::snprintf(line, sizeof line, "%12s %11s %11s %11s %11s %7s %8s %7s %10s  ", "sum", "min", "max",
                  "mean", "deviation", "active", "entropy", "z > 1", "experts");
    std::string text = std::string(line) + "tensor\n";
    for (const auto &[name, entry] : sums.entries) {
        const ImportanceStatistics s = quantize::statistics_of(entry);
        const std::string experts =
            s.matrices > 1 ? std::to_string(s.met) + "/" + std::to_string(s.matrices) : "";
        std::snprintf(line, sizeof line, "%12.4g %11.4g %11.4g %11.4g %11.4g %6.2f%% %8.4f %6.2f%% %10s  ",
                      s.sum, s.smallest, s.largest, s.mean, s.deviation, 100 * s.active, s.entropy,
                      100 * s.outliers, experts.c_str());
        text += line + gguf::printable(name, 200) + "\n";
    }
    return text;
}

std::string table_json(const ImportanceSums &sums) {
    nlohmann::ordered_json result = {{"chunks", sums.chunks},
                                     {"chunk_size", sums.chunk_size},
                                     {"tensors", nlohmann::ordered_json::array()}};
    for (const auto &[name, entry] : sums.entries) {
        const ImportanceStatistics s = quantize::statistics_of(entry);
        result["tensors"].push_back({{"name", gguf::printable(name, 4096)},
                                     {"columns", entry.columns},
                                     {"sum", s.sum},
                                     {"min", s.smallest},
                                     {"max", s.largest},
                                     {"mean", s.mean},
                                     {"deviation", s.deviation},
                                     {"active", s.active},
                                     {"entropy", s.entropy},
                                     {"outliers", s.outliers},
                                     {"matrices", s.matrices},
                                     {"met", s.met},
                                     {"fewest_rows", s.fewest}});
    }
    return result.dump() + "\n";
}

int show(const ImatrixOptions &options, Io &io) {
    const ImportanceSums sums = ImportanceSums::load(options.shown);
    io.out.write(options.json ? table_json(sums) : table(sums));
    return exit_code::kDone;
}

int make(const ImatrixOptions &options, Io &io) {
    decode::StopRequest stop;
    const InterruptScope interrupts(stop);
    std::vector<std::string> inputs = options.merged;
    if (!options.text.empty() && options.text != "-") inputs.push_back(options.text);
    for (const std::string &input : inputs) gguf::note_read(std::filesystem::path(input));
    if (!options.model.empty()) gguf::note_model(options.model);
    gguf::check_output(options.output, {.overwrite = io.overwrite});
    ImportanceSums sums;
    for (const std::string &path : options.merged) sums.merge(ImportanceSums::load(path));
    if (!options.model.empty()) measure(options, stop, io, sums);
    sums.save(options.output, io.overwrite);
    warn_of_experts(sums, io);
    io.note(gguf::printable(options.output, 1024) + ": " + std::to_string(sums.entries.size()) +
            " tensors, " + std::to_string(sums.chunks) + " chunks");
    return exit_code::kDone;
}

}  // namespace

int imatrix(const ImatrixOptions &options, Io &io) {
    check(options);
    try {
        return options.shown.empty() ? make(options, io) : show(options, io);
    } catch (const quantize::QuantizeError &error) {
        throw InputError(error.what());
    }
}

}  // namespace runnel::commands
