// Prefill and decode speed, compared with what the hardware allows.
#include <algorithm>
#include <iterator>

#include "engine/commands/bench/bench_report.h"
#include "engine/commands/bench/bench_speculation.h"
#include "engine/commands/commands.h"
#include "engine/commands/generation.h"
#include "engine/measure/median.h"
#include "engine/measure/speed.h"
#include "kernels/cpu/pool.h"

namespace runnel::commands {
namespace {

using decode::Engine;
using measure::DeviceLimits, measure::median, measure::SpeedRow;

// The median of the bandwidths measured around the tests; without any, one new measurement.
double median_bandwidth(const std::vector<SpeedRow> &rows, DeviceLimits &limits) {
    std::vector<double> all;
    for (const SpeedRow &row : rows) all.insert(all.end(), row.bandwidths.begin(), row.bandwidths.end());
    return all.empty() ? limits.bandwidth() : median(std::move(all));
}

// The context that holds every test.
int64_t needed_context(const BenchOptions &options, int32_t batch, int32_t most_sequences) {
    const int64_t deepest = std::ranges::max(options.depths);
    int64_t tokens = std::max(std::ranges::max(options.prompts), std::ranges::max(options.generates));
    for (const auto &[prompt, generate] : options.both) tokens = std::max(tokens, int64_t{prompt} + generate);
    int64_t needed = deepest + tokens;
    // Sequences that started early decode further tokens while the last prompts are prefilled.
    if (most_sequences > 1)
        needed += 2 + int64_t{most_sequences} * (deepest + 1) / std::max(1, batch - most_sequences);
    return needed;
}

// Shows that `test` ("pp512") is number `number` of `all`.
void show(Io &io, const std::string &test, size_t number, size_t all) {
    if (io.err.is_terminal())
        io.progress("\r\033[K" + test + " (" + std::to_string(number) + " of " + std::to_string(all) + ")");
}

BenchRun measure_variant(const BenchOptions &options, const ModelOptions &model, size_t number,
                         size_t variants, Io &io, const decode::StopRequest &stop) {
    decode::EngineOptions engine_flags = engine_options(model, io, stop);
    const int32_t most = options.sequences.empty() ? 1 : std::ranges::max(options.sequences);
    const int64_t needed = needed_context(options, model.batch, most);
    engine_flags.sequences = most;
    if (engine_flags.context == 0) engine_flags.context = needed;
    if (engine_flags.context < needed)
        throw UsageError("the tests need a context of " + std::to_string(needed) + " tokens: omit -c");
    const int threads = model.threads > 0 ? model.threads : kernels::cpu::physical_cores();
    DeviceLimits limits(engine_flags.device);
    Engine engine(engine_flags);
    for (const std::string &note : engine.notes()) io.note(note);
    if (engine.executor().device().kind.find("cpu") != std::string::npos)
        limits.use_cpu(threads, engine.model().program.weight_bytes_per_token());
    measure::SpeedBench bench(
        {.repetitions = options.repetitions, .sequences = options.sequences, .types = model.cache.types},
        engine, limits, stop);
    BenchRun run{model,
                 threads,
                 engine.executor().device().name,
                 engine.placement_details(),
                 engine.load_seconds(),
                 0,
                 "",
                 limits.tensor_rate(),
                 limits.cache(),
                 {}};
    for (const int32_t depth : options.depths) {
        const std::string at = depth > 0 ? " @ d" + std::to_string(depth) : "";
        for (const int32_t tokens : options.prompts)
            if (tokens > 0) {
                show(io, "pp" + std::to_string(tokens) + at, number, variants);
                run.rows.push_back(bench.prefill(tokens, depth));
            }
        for (const int32_t tokens : options.generates)
            if (tokens > 0) {
                show(io, "tg" + std::to_string(tokens) + at, number, variants);
                run.rows.push_back(bench.decode(tokens, depth));
                std::ranges::move(bench.together(tokens, depth), std::back_inserter(run.rows));
            }
        for (const auto &[prompt, generate] : options.both) {
            show(io, "pp" + std::to_string(prompt) + "+tg" + std::to_string(generate) + at, number, variants);
            run.rows.push_back(bench.both(prompt, generate, depth));
        }
    }
    show(io, "bandwidth", number, variants);
    run.bandwidth = median_bandwidth(run.rows, limits);
    run.bandwidth_of = limits.method();
    return run;
}

}  // namespace

int bench(const BenchOptions &given, Io &io) {
    BenchOptions options = given;
    if (options.prompts.empty()) options.prompts = {512};
    if (options.generates.empty()) options.generates = {128};
    if (options.depths.empty()) options.depths = {0};
    if (drafting_options(options.draft, options.model)) {
        if (options.output != BenchOptions::Output::Table && !options.json())
            throw UsageError("drafts are shown as a table or as JSON: -o table or -o json");
        return bench_speculation(options, io);
    }
    if (std::ranges::max(options.prompts) <= 0 && std::ranges::max(options.generates) <= 0 &&
        options.both.empty())
        throw UsageError("nothing to measure: -p and -n are both 0");
    decode::StopRequest stop;
    const InterruptScope interrupts(stop);
    const std::vector<ModelOptions> variants =
        options.variants.empty() ? std::vector<ModelOptions>{options.model} : options.variants;
    std::vector<BenchRun> runs;
    for (const ModelOptions &model : variants)
        runs.push_back(measure_variant(options, model, runs.size() + 1, variants.size(), io, stop));
    if (io.err.is_terminal()) io.progress("\r\033[K");
    io.out.write(report(runs, options));
    return exit_code::kDone;
}

}  // namespace runnel::commands
