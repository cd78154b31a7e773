// `bench --batching`: throughput against latency by the number of sequences computed at a time.
#include <algorithm>
#include <cmath>

#include "engine/commands/bench/bench_exhibits.h"
#include "engine/commands/figures.h"
#include "engine/commands/generation.h"
#include "engine/commands/json.h"
#include "engine/commands/plot/plot_output.h"
#include "engine/measure/batching.h"
#include "engine/measure/percentile.h"
#include "gguf/base/interrupted.h"

namespace runnel::commands {
namespace {

using measure::BatchingLoad, measure::BatchingRow, measure::measure_batching, measure::percentile;

// Milliseconds in 7 columns.
std::string short_ms(double seconds) {
    const double ms = seconds * 1e3;
    return format(ms < 99.95 ? "%7.2f" : ms < 9999.5 ? "%7.1f" : "%7.0f", ms);
}

std::string batching_table(const std::vector<BatchingRow> &rows, const std::string &device) {
    const BatchingLoad &load = rows.front().load;
    std::string text = device + "\n\n";
    text += format("requests of %d tokens, answers of %d; milliseconds:\n", load.prompt, load.generate);
    text += "TTFT: from the arrival to the first token, TPOT: from each token to the next,\n";
    text += "wait: from the arrival to the first pass\n\n";
    text += "   at a  arriving                 TTFT           TPOT                 wait\n";
    text += "   time   per s   req/s  tok/s     p50    p95    p50    p95    p99    p95\n";
    for (const BatchingRow &row : rows) {
        const std::vector<double> first = row.first_tokens(), between = row.token_times();
        text += format("%7d %7s %7.2f %6.0f ", row.load.parallel,
                       row.load.rate > 0 ? short_number(row.load.rate).c_str() : "-",
                       row.requests_per_second(), row.tokens_per_second());
        text += short_ms(percentile(first, 50)) + short_ms(percentile(first, 95));
        for (const double percent : {50.0, 95.0, 99.0}) text += short_ms(percentile(between, percent));
        text += short_ms(percentile(row.waits(), 95)) + "\n";
    }
    const auto preempted = [](const BatchingRow &row) { return row.preemptions > 0; };
    if (std::ranges::any_of(rows, preempted))
        text += "\nsequences were preempted, because the cache was full: a larger -c avoids it\n";
    return text;
}

// Time per token over throughput if every request arrives when another is finished, else the time to the first
// token over the rate of arrivals.
Plot batching_plot(const std::vector<BatchingRow> &rows) {
    Plot plot;
    if (rows.front().load.rate > 0) {
        plot.title = "Time to the first token by the rate of requests";
        plot.x = {"requests arriving per second"};
        plot.y = {"p95 of the time to the first token, ms", true};
        for (const BatchingRow &row : rows) {
            const std::string name = format("%d at a time", row.load.parallel);
            const auto same = [&](const Series &one) { return one.name == name; };
            auto series = std::ranges::find_if(plot.series, same);
            if (series == plot.series.end()) series = plot.series.insert(series, {name, {}});
            series->points.emplace_back(row.load.rate, percentile(row.first_tokens(), 95) * 1e3);
        }
        return plot;
    }
    const BatchingRow &one = rows.front(), &most = rows.back();
    plot.title = rows.size() == 1
                     ? format("%d at a time", one.load.parallel)
                     : format("%d at a time: %.1f times the tokens per second of %d, %.1f times the TPOT",
                              most.load.parallel, most.tokens_per_second() / one.tokens_per_second(),
                              one.load.parallel,
                              percentile(most.token_times(), 50) / percentile(one.token_times(), 50));
    plot.x = {"tokens per second of all answers"};
    plot.y = {"milliseconds from token to token", true};
    std::string counts;
    for (const BatchingRow &row : rows)
        counts += (counts.empty() ? "" : ", ") + std::to_string(row.load.parallel);
    Series p50{"p50 with " + counts + " at a time", {}}, p95{"p95", {}};
    for (const BatchingRow &row : rows) {
        p50.points.emplace_back(row.tokens_per_second(), percentile(row.token_times(), 50) * 1e3);
        p95.points.emplace_back(row.tokens_per_second(), percentile(row.token_times(), 95) * 1e3);
    }
    plot.series = {p50, p95};
    return plot;
}

Json percentiles_ms(const std::vector<double> &seconds) {
    double sum = 0;
    for (const double one : seconds) sum += one;
    return {{"mean", sum / static_cast<double>(seconds.size()) * 1e3},
            {"p50", percentile(seconds, 50) * 1e3},
            {"p95", percentile(seconds, 95) * 1e3},
            {"p99", percentile(seconds, 99) * 1e3}};
}

Json batching_json(const std::vector<BatchingRow> &rows, bool complete, const std::string &model,
                   const std::string &device) {
    Json list = Json::array();
    for (const BatchingRow &row : rows) {
        Json requests = Json::array();
        for (const measure::RequestTimes &request : row.requests) {
            Json between = Json::array();
            for (const double seconds : request.between) between.push_back(seconds * 1e3);
            requests.push_back({{"arrival_ms", request.arrival * 1e3},
                                {"wait_ms", request.wait * 1e3},
                                {"ttft_ms", request.first_token * 1e3},
                                {"tokens_ms", std::move(between)}});
        }
        list.push_back({{"parallel", row.load.parallel},
                        {"rate", row.load.rate > 0 ? Json(row.load.rate) : Json()},
                        {"seconds", row.seconds},
                        {"requests_per_second", row.requests_per_second()},
                        {"tokens_per_second", row.tokens_per_second()},
                        {"sequences_per_step", row.sequences_per_step()},
                        {"preemptions", row.preemptions},
                        {"wait_ms", percentiles_ms(row.waits())},
                        {"ttft_ms", percentiles_ms(row.first_tokens())},
                        {"tpot_ms", percentiles_ms(row.token_times())},
                        {"requests", std::move(requests)}});
    }
    return {{"model", model},
            {"device", device},
            {"prompt", rows.front().load.prompt},
            {"generate", rows.front().load.generate},
            {"seed", rows.front().load.seed},
            {"complete", complete},
            {"rows", std::move(list)}};
}

std::vector<BatchingLoad> loads_of(const BenchOptions &options, const ExhibitOptions &exhibit) {
    if (options.both.size() > 1) throw UsageError("--batching has requests of one kind: give -pg once");
    BatchingLoad load;
    if (!options.both.empty()) load.prompt = options.both[0].prompt, load.generate = options.both[0].generate;
    if (load.generate < 2)
        throw UsageError("--batching times the tokens after the first: give -pg P,G with a G of at least 2");
    std::vector<int32_t> sequences = options.sequences;
    if (sequences.empty())
        sequences =
            exhibit.rates.empty() ? std::vector<int32_t>{1, 2, 4, 8, 16, 32} : std::vector<int32_t>{1, 4, 16};
    const std::vector<double> rates = exhibit.rates.empty() ? std::vector<double>{0} : exhibit.rates;
    std::vector<BatchingLoad> loads;
    for (const int32_t parallel : sequences)
        for (const double rate : rates) {
            load.parallel = parallel, load.rate = rate;
            load.requests = exhibit.requests > 0 ? exhibit.requests
                            : rate > 0           ? static_cast<int32_t>(std::clamp(2 * rate, 16.0, 256.0))
                                                 : std::max(16, 4 * parallel);
            loads.push_back(load);
        }
    return loads;
}

}  // namespace

int bench_batching(const BenchOptions &options, const ExhibitOptions &exhibit, Io &io) {
    check_exhibit(options, "--batching", {.sequences = true});
    check_plot_file(exhibit.plot, io);
    std::vector<BatchingLoad> loads = loads_of(options, exhibit);
    decode::StopRequest stop;
    const InterruptScope interrupts(stop);
    decode::EngineOptions flags = engine_options(options.model, io, stop);
    for (const BatchingLoad &load : loads) flags.sequences = std::max(flags.sequences, load.parallel);
    const int64_t length = int64_t{loads.front().prompt} + loads.front().generate;
    if (flags.context > 0 && flags.context < length)
        throw UsageError("the requests need a context of " + std::to_string(length) + " tokens: omit -c");
    constexpr int64_t kBlock = kernels::kBlockTokens;  // each sequence takes whole blocks
    if (flags.context == 0) flags.context = (length + kBlock - 1) / kBlock * kBlock;
    decode::Engine engine(flags);
    for (const std::string &note : engine.notes()) io.note(note);
    // Brings the weights into memory.
    measure_batching(engine, {.requests = 1, .prompt = loads.front().prompt, .generate = 2}, stop);
    std::vector<BatchingRow> rows;
    for (BatchingLoad &load : loads) {
        load.seed = exhibit.seed;
        load.prompts = static_cast<uint32_t>(rows.size()) + 1;
        const std::string test = format("%d at a time", load.parallel) +
                                 (load.rate > 0 ? ", " + short_number(load.rate) + " per second" : "");
        const auto show = [&](int32_t done) {
            show_progress(io, test + format(": %d of %d", done, load.requests));
        };
        try {
            rows.push_back(measure_batching(engine, load, stop, show));
        } catch (const base::Interrupted &) {  // the rows before are complete
            if (rows.empty()) throw;
            break;
        }
    }
    show_progress(io, "");
    const bool complete = rows.size() == loads.size();
    if (!complete) io.note(format("interrupted: %zu of %zu rows", rows.size(), loads.size()));
    const Plot picture = batching_plot(rows);
    write_plot_file(exhibit.plot, picture, io);
    const std::string device = engine.executor().device().name;
    io.out.write(options.json() ? dump(batching_json(rows, complete, options.model.path, device), 2)
                                : batching_table(rows, device) + "\n" + terminal_plot(picture, plot_size()));
    return complete ? exit_code::kDone : exit_code::kInterrupted;
}

}  // namespace runnel::commands
