// `bench --naive`: what the KV cache saves.
#include <algorithm>

#include "engine/commands/bench/bench_exhibits.h"
#include "engine/commands/figures.h"
#include "engine/commands/generation.h"
#include "engine/commands/json.h"
#include "engine/commands/plot/plot_output.h"
#include "engine/measure/naive.h"

namespace runnel::commands {
namespace {

using measure::NaiveComparison, measure::NaiveStep;

// Whether the table has a row for this step: lengths that are powers of two, and the last step.
bool is_shown(const NaiveComparison &compared, const NaiveStep &step) {
    return (step.length & (step.length - 1)) == 0 || &step == &compared.steps.back();
}

std::string table(const NaiveComparison &c, const std::string &device) {
    std::string text = device + "\n\n";
    text += "                  cached                            recomputed\n";
    text += "length    ms/token        scores     Mop   ms/token        scores       Mop\n";
    for (const NaiveStep &step : c.steps)
        if (is_shown(c, step))
            text +=
                format("%6lld %11.2f %13.0f %7.1f %10.2f %13.0f %9.1f\n", static_cast<long long>(step.length),
                       step.cached * 1e3, step.cached_cost.scores, step.cached_cost.operations() / 1e6,
                       step.naive * 1e3, step.naive_cost.scores, step.naive_cost.operations() / 1e6);
    text +=
        format("\n%zu tokens in %.2f s with the cache, in %.2f s without: %.1f times as long\n",
               c.steps.size(), c.cached_seconds(), c.naive_seconds(), c.naive_seconds() / c.cached_seconds());
    text += format("time per token grows as length^%.2f with the cache, as length^%.2f without\n",
                   c.cached_exponent(), c.naive_exponent());
    if (const int64_t from = c.slower_from(2); from > 0)
        text += format("recomputing takes more than twice as long from %lld tokens on\n",
                       static_cast<long long>(from));
    return text + (c.same() ? "both loops gave the same text\n" : "the two loops gave different texts\n");
}

Plot plot_of(const NaiveComparison &c) {
    Plot plot;
    plot.title = format("Without a KV cache, %zu tokens take %.1f times as long", c.steps.size(),
                        c.naive_seconds() / c.cached_seconds());
    plot.x = {"length of the text, tokens", true};
    plot.y = {"milliseconds per token", true};
    Series cached{"cached", {}}, naive{"recomputed", {}};
    double next = 1;  // about 12 points per factor of 10
    for (const NaiveStep &step : c.steps) {
        const auto length = static_cast<double>(step.length);
        if (length < next && &step != &c.steps.back()) continue;
        next = std::max(length + 1, length * 1.2);
        cached.points.emplace_back(length, step.cached * 1e3);
        naive.points.emplace_back(length, step.naive * 1e3);
    }
    plot.series = {cached, naive};
    return plot;
}

Json json_of(const NaiveComparison &c, const std::string &model, const std::string &device) {
    Json steps = Json::array();
    const auto side = [](double seconds, const measure::PassCost &cost) -> Json {
        return {{"ms", seconds * 1e3},
                {"scores", cost.scores},
                {"operations", cost.operations()},
                {"bytes", cost.bytes()}};
    };
    for (const NaiveStep &step : c.steps)
        steps.push_back({{"length", step.length},
                         {"cached", side(step.cached, step.cached_cost)},
                         {"recomputed", side(step.naive, step.naive_cost)}});
    const int64_t from = c.slower_from(2);
    return {{"model", model},
            {"device", device},
            {"tokens", c.steps.size()},
            {"cached_ms", c.cached_seconds() * 1e3},
            {"recomputed_ms", c.naive_seconds() * 1e3},
            {"cached_exponent", c.cached_exponent()},
            {"recomputed_exponent", c.naive_exponent()},
            {"twice_as_slow_from", from > 0 ? Json(from) : Json()},
            {"same_text", c.same()},
            {"text", c.cached_text},
            {"steps", std::move(steps)}};
}

}  // namespace

void show_progress(Io &io, const std::string &test) {
    if (io.err.is_terminal()) io.progress("\r\033[K" + test);
}

void check_exhibit(const BenchOptions &options, const std::string &mode, Takes takes) {
    if (options.output != BenchOptions::Output::Table && !options.json())
        throw UsageError(mode + " is shown as a table or as JSON: -o table or -o json");
    if (options.variants.size() > 1 && !takes.lists)
        throw UsageError(mode + " measures one setting: give no lists");
    const bool has_depths = !options.depths.empty() && options.depths != std::vector<int32_t>{0};
    if (has_depths && !takes.depths)
        throw UsageError(mode + " measures sequences from their beginning: omit -d");
    if (!options.sequences.empty() && !takes.sequences)
        throw UsageError(mode + " measures one sequence: omit --sequences");
    if (!options.prompts.empty() || (!options.generates.empty() && !takes.generates))
        throw UsageError(mode + (takes.both        ? " takes -pg P,G, not -p and -n"
                                 : takes.generates ? " has no prompt: omit -p"
                                                   : " has no request: omit -p and -n"));
    if (!options.both.empty() && !takes.both) throw UsageError(mode + " has no request: omit -pg");
}

int bench_naive(const BenchOptions &options, const std::string &plot, Io &io) {
    check_exhibit(options, "--naive", {.both = false, .generates = true});
    check_plot_file(plot, io);
    const int32_t tokens = options.generates.empty() ? 128 : options.generates[0];
    if (options.generates.size() > 1 || tokens < 2 || tokens > 16384)
        throw UsageError("--naive generates one text: give one -n from 2 to 16384");
    decode::StopRequest stop;
    const InterruptScope interrupts(stop);
    decode::EngineOptions flags = engine_options(options.model, io, stop);
    flags.sequences = 2;
    if (flags.context > 0 && flags.context < tokens + 1)
        throw UsageError("the texts need a context of " + std::to_string(tokens + 1) + " tokens: omit -c");
    constexpr int64_t kBlock = kernels::kBlockTokens;  // each sequence takes whole blocks
    flags.context = (std::max<int64_t>(flags.context, tokens + 1) + kBlock - 1) / kBlock * kBlock;
    decode::Engine engine(flags);
    for (const std::string &note : engine.notes()) io.note(note);
    const NaiveComparison compared =
        measure::compare_naive(engine, tokens, options.model.cache.types, stop, [&](int64_t length) {
            show_progress(io, "length " + std::to_string(length) + " of " + std::to_string(tokens));
        });
    show_progress(io, "");
    const Plot picture = plot_of(compared);
    write_plot_file(plot, picture, io);
    const std::string device = engine.executor().device().name;
    io.out.write(options.json() ? dump(json_of(compared, options.model.path, device), 2)
                                : table(compared, device) + "\n" + terminal_plot(picture, plot_size()));
    return exit_code::kDone;
}

}  // namespace runnel::commands
