// Prefill and decode speed against what the hardware allows.
#include <algorithm>
#include <cstdio>
#include <iterator>

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

std::string table(const std::vector<SpeedRow> &rows, double bandwidth, const DeviceLimits &limits,
                  const std::string &device) {
    char line[256];
    std::snprintf(line, sizeof line, "%s, %s %.1f GB/s", device.c_str(), limits.of_gpu() ? "copies" : "reads",
                  bandwidth / 1e9);
    std::string text = line;
    if (limits.tensor_rate() > 0) {
        std::snprintf(line, sizeof line, ", multiplies %.0f TFLOP/s (16 bits)", limits.tensor_rate() / 1e12);
        text += line;
    }
    text += "\n\n";
    text += "test              tokens/s      +/-   first token   MB/token   of bandwidth\n";
    for (const SpeedRow &row : rows) {
        if (row.decode && !row.share())
            std::snprintf(line, sizeof line, "%-15s %10.2f %8.2f %13s %10.1f %14s\n", row.test.c_str(),
                          row.mean(), row.deviation(), "", row.bytes_per_token / 1e6, "-");
        else if (row.decode)
            std::snprintf(line, sizeof line, "%-15s %10.2f %8.2f %13s %10.1f %13.1f%%\n", row.test.c_str(),
                          row.mean(), row.deviation(), "", row.bytes_per_token / 1e6, 100 * *row.share());
        else if (!row.gains.empty())
            std::snprintf(line, sizeof line, "%-15s %10.2f %8.2f %30.2f times one at a time\n",
                          row.test.c_str(), row.mean(), row.deviation(), median(row.gains));
        else
            std::snprintf(line, sizeof line, "%-15s %10.2f %8.2f %10.1f ms\n", row.test.c_str(), row.mean(),
                          row.deviation(), row.first_token * 1e3);
        text += line;
        if (row.operations > 0 && limits.tensor_rate() > 0) {
            text.pop_back();
            std::snprintf(line, sizeof line, " %28.1f%% of multiplying\n",
                          100 * row.operations / limits.tensor_rate());
            text += line;
        }
    }
    return text;
}

// Of all that was measured beside the rows; of one reading, when nothing was.
double median_bandwidth(const std::vector<SpeedRow> &rows, DeviceLimits &limits) {
    std::vector<double> all;
    for (const SpeedRow &row : rows) all.insert(all.end(), row.bandwidths.begin(), row.bandwidths.end());
    return all.empty() ? limits.bandwidth() : median(std::move(all));
}

std::string kind_of(const SpeedRow &row) {
    return row.decode ? "decode" : row.gains.empty() ? "prefill" : "sequences";
}

Json json_of(const std::vector<SpeedRow> &rows, double bandwidth, const DeviceLimits &limits,
             const Engine &engine, const std::string &device, const BenchOptions &options) {
    Json list = Json::array();
    for (const SpeedRow &row : rows)
        list.push_back({{"test", row.test},
                        {"kind", kind_of(row)},
                        {"tokens", kind_of(row) == "prefill" ? options.prompt : options.generate},
                        {"depth", row.depth},
                        {"sequences", row.sequences},
                        {"gain", row.gains.empty() ? Json() : Json(median(row.gains))},
                        {"tps_mean", row.mean()},
                        {"tps_sd", row.deviation()},
                        {"tps", row.rates},
                        {"ttft_ms", kind_of(row) == "prefill" ? Json(row.first_token * 1e3) : Json()},
                        {"bytes_per_token", row.decode ? Json(row.bytes_per_token) : Json()},
                        {"bandwidth_share", row.share() ? Json(*row.share()) : Json()},
                        {"launches_per_token", row.launches > 0 ? Json(row.launches) : Json()},
                        {"operations_per_second", row.operations > 0 ? Json(row.operations) : Json()},
                        {"tensor_share", row.operations > 0 && limits.tensor_rate() > 0
                                             ? Json(row.operations / limits.tensor_rate())
                                             : Json()}});
    return {{"model", options.model.path},
            {"device", device},
            {"placement", engine.placement()},
            {"bandwidth_bytes_per_second", bandwidth},
            {"bandwidth_of", limits.of_gpu() ? "copies" : "reads"},
            {"tensor_operations_per_second", limits.tensor_rate() > 0 ? Json(limits.tensor_rate()) : Json()},
            {"load_ms", engine.load_seconds() * 1e3},
            {"repetitions", options.repetitions},
            {"tests", std::move(list)}};
}

}  // namespace

int bench(const BenchOptions &options, Io &io) {
    if (drafting_options(options.draft, options.model)) return bench_speculation(options, io);
    if (options.prompt <= 0 && options.generate <= 0)
        throw UsageError("nothing to measure: -p and -n are both 0");
    decode::StopRequest stop;
    const InterruptScope interrupts(stop);
    const int32_t deepest = *std::max_element(options.depths.begin(), options.depths.end());
    decode::EngineOptions engine_flags = engine_options(options.model, io, stop);
    const int32_t most =
        options.sequences.empty() ? 1 : *std::max_element(options.sequences.begin(), options.sequences.end());
    int64_t needed = int64_t{deepest} + std::max(options.prompt, options.generate);
    // The first answers go on while the last prompts are computed.
    if (most > 1) needed += 2 + int64_t{most} * (deepest + 1) / std::max(1, options.model.batch - most);
    engine_flags.sequences = most;
    if (engine_flags.context == 0) engine_flags.context = needed;
    if (engine_flags.context < needed)
        throw UsageError("the tests need a context of " + std::to_string(needed) + " tokens: omit -c");
    const int threads = options.model.threads > 0 ? options.model.threads : kernels::cpu::physical_cores();
    DeviceLimits limits(engine_flags.device, threads);
    Engine engine(engine_flags);
    for (const std::string &note : engine.notes()) io.note(note);
    if (engine.executor().device().kind.find("cpu") != std::string::npos) limits.use_cpu(threads);
    const std::string device = engine.executor().device().name;
    measure::SpeedBench bench({.prompt = options.prompt,
                               .generate = options.generate,
                               .repetitions = options.repetitions,
                               .sequences = options.sequences,
                               .types = options.model.cache.types},
                              engine, limits, stop);
    std::vector<SpeedRow> rows;
    for (const int32_t depth : options.depths) {
        if (options.prompt > 0) rows.push_back(bench.prefill(depth));
        if (options.generate > 0) rows.push_back(bench.decode(depth));
        if (options.generate > 0) std::ranges::move(bench.together(depth), std::back_inserter(rows));
    }
    const double bandwidth = median_bandwidth(rows, limits);
    io.out.write(options.json ? dump(json_of(rows, bandwidth, limits, engine, device, options), 2)
                              : table(rows, bandwidth, limits, device));
    return exit_code::kDone;
}

}  // namespace runnel::commands
