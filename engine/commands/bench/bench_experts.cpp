// `bench --experts`: what a GPU that holds some experts of each layer at a time would fetch (--gpu-experts).
#include <algorithm>

#include "engine/commands/bench/bench_exhibits.h"
#include "engine/commands/figures.h"
#include "engine/commands/generation.h"
#include "engine/commands/json.h"
#include "engine/commands/plot/plot_output.h"
#include "engine/measure/fetched_experts.h"
#include "engine/model/model.h"
#include "gguf/file.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

using measure::ExpertTrace, measure::PlacesUse;

constexpr int64_t kMostTraced = 2048;  // of the text, without -c
constexpr size_t kUncounted = 64;      // tokens, of a text four times as long; of a shorter one, a quarter
constexpr int32_t kRows = 8;           // of the table: parts of all experts
constexpr double kBusRate = 25e9;      // bytes per second: what PCIe 4 with 16 lanes carries

struct ExpertRow {
    int32_t held;
    PlacesUse use;
};

struct ExpertReport {
    ExpertTrace trace;
    size_t warm_up = 0;
    std::vector<ExpertRow> rows;

    double chosen_bytes() const {  // per token
        double bytes = 0;
        for (const kernels::TracedMixture &one : trace.mixtures)
            bytes += static_cast<double>(one.expert_bytes) * one.used;
        return bytes;
    }
};

// Eighths of all experts, from the number that a token uses on.
std::vector<ExpertRow> simulate(const ExpertTrace &trace, size_t warm_up) {
    std::vector<int32_t> held = {trace.most_used()};
    for (int32_t i = 1; i <= kRows; ++i)
        held.push_back(std::max(held.front(), trace.most_experts() * i / kRows));
    held.erase(std::unique(held.begin(), held.end()), held.end());
    std::vector<ExpertRow> rows;
    for (const int32_t count : held) rows.push_back({count, measure::simulate_places(trace, count, warm_up)});
    return rows;
}

double share(const PlacesUse &use) {
    return use.fetched / use.chosen;
}

std::string table(const ExpertReport &report, const std::string &file) {
    const ExpertTrace &trace = report.trace;
    const auto bytes = [](double count) { return size_text(static_cast<uint64_t>(count)); };
    std::string text =
        format("%zu layers with %d experts (%s); a token uses %d of each (%s)\n", trace.mixtures.size(),
               trace.most_experts(), bytes(static_cast<double>(trace.all_bytes())).c_str(), trace.most_used(),
               bytes(report.chosen_bytes()).c_str()) +
        format("%zu tokens of ", trace.tokens()) + gguf::printable(file) +
        format(", of which the first %zu are not counted\n\n", report.warm_up);
    text += format("%-15s%14s%10s%14s%12s\n", "--gpu-experts", "GPU memory", "fetched", "per token",
                   "at 25 GB/s");
    for (const ExpertRow &row : report.rows)
        text += format("%-15d%14s%9.1f%%%14s%9.1f ms\n", row.held,
                       bytes(static_cast<double>(row.use.held_bytes)).c_str(), 100 * share(row.use),
                       bytes(row.use.fetched_bytes).c_str(), row.use.fetched_bytes / kBusRate * 1e3);
    text += "GPU memory: of the experts alone\n";
    text += "fetched: of the experts that a token uses, decoding one token after the other\n";
    text += "at 25 GB/s: a token's time for that over PCIe 4 with 16 lanes, without everything else\n";
    return text;
}

Plot plot_of(const ExpertReport &report) {
    Plot plot;
    plot.title = format("A GPU that holds %d of %d experts fetches %.0f%% of those that a token uses",
                        report.rows[report.rows.size() / 2].held, report.trace.most_experts(),
                        100 * share(report.rows[report.rows.size() / 2].use));
    plot.x = {"experts of each layer in GPU memory", false};
    plot.y = {"fetched, percent", false};
    Series series{"fetched", {}};
    for (const ExpertRow &row : report.rows) series.points.emplace_back(row.held, 100 * share(row.use));
    plot.series = {series};
    return plot;
}

Json json_of(const ExpertReport &report, const std::string &model, const std::string &file) {
    Json rows = Json::array();
    for (const ExpertRow &row : report.rows)
        rows.push_back({{"gpu_experts", row.held},
                        {"gpu_bytes", row.use.held_bytes},
                        {"chosen", row.use.chosen},
                        {"fetched", row.use.fetched},
                        {"fetched_bytes", row.use.fetched_bytes}});
    return {{"model", model},
            {"file", file},
            {"tokens", report.trace.tokens()},
            {"not_counted", report.warm_up},
            {"layers", report.trace.mixtures.size()},
            {"experts", report.trace.most_experts()},
            {"used", report.trace.most_used()},
            {"expert_bytes", report.trace.all_bytes()},
            {"chosen_bytes", report.chosen_bytes()},
            {"rows", std::move(rows)}};
}

}  // namespace

int bench_experts(const BenchOptions &options, const std::string &plot, Io &io) {
    check_exhibit(options, "--experts", {.both = false});
    check_plot_file(plot, io);
    if (!options.file) throw UsageError("--experts needs a text such as the model will read: -f FILE");
    if (options.model.device != "auto" && options.model.device != "cpu")
        throw UsageError("--experts counts choices on the CPU: omit --device");
    decode::StopRequest stop;
    const InterruptScope interrupts(stop);
    decode::EngineOptions flags = engine_options(options.model, io, stop);
    flags.device.device = "cpu";
    if (flags.context == 0)
        flags.context = std::min<int64_t>(
            kMostTraced, model::read_hyper_parameters(gguf::File::open(flags.model)).context_length);
    const std::string text = read_all(*options.file, io.in, &stop);
    decode::Engine engine(flags);
    for (const std::string &note : engine.notes()) io.note(note);
    std::vector<text::TokenId> tokens = engine.tokenizer().encode(text);
    tokens.resize(std::min(tokens.size(), static_cast<size_t>(engine.executor().context())));
    if (tokens.size() < 4) throw InputError("--experts: the text has fewer than 4 tokens");
    show_progress(io, format("the choices for %zu tokens", tokens.size()));
    ExpertReport report{
        measure::trace_choices(engine, tokens, stop), std::min(kUncounted, tokens.size() / 4), {}};
    show_progress(io, "");
    if (report.trace.mixtures.empty()) throw UsageError("--experts: the model has no experts");
    report.rows = simulate(report.trace, report.warm_up);
    const Plot picture = plot_of(report);
    write_plot_file(plot, picture, io);
    io.out.write(options.json() ? dump(json_of(report, options.model.path, *options.file), 2)
                                : table(report, *options.file) + "\n" + terminal_plot(picture, plot_size()));
    return exit_code::kDone;
}

}  // namespace runnel::commands
