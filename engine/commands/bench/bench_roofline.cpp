// `bench --roofline`: what limits prefill and decode on this device.
#include <algorithm>
#include <numeric>

#include "engine/commands/bench/bench_exhibits.h"
#include "engine/commands/figures.h"
#include "engine/commands/generation.h"
#include "engine/commands/json.h"
#include "engine/commands/plot/plot_output.h"
#include "engine/measure/percentile.h"
#include "engine/measure/roofline.h"
#include "engine/model/model.h"
#include "gguf/file.h"
#include "kernels/cpu/pool.h"

namespace runnel::commands {
namespace {

using measure::percentile, measure::Roofline, measure::RooflinePoint;

bool memory_limits(const Roofline &roofline, const RooflinePoint &point) {
    return point.cost.intensity() < roofline.ridge();
}

double share_of_roof(const Roofline &roofline, const RooflinePoint &point) {
    return point.rate() / roofline.roof(point.cost.intensity());
}

double mean(const std::vector<double> &values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::string table(const Roofline &r, const std::string &device) {
    std::string text = device + "\n";
    text += format("memory      %8.1f GB/s  %s\n", r.bandwidth / 1e9, r.bandwidth_of.c_str());
    text += format("arithmetic  %8.0f Gop/s %s\n", r.multiply_rate / 1e9, r.multiply_of.c_str());
    text += format("ridge point %8.1f operations per byte: below it, memory is the limit\n\n", r.ridge());
    text += format("prompt of %d tokens: first token after %.1f ms\n", r.prompt, r.first_token * 1e3);
    text += format("answer of %d tokens: %.2f ms per token (p50 %.2f, p95 %.2f, p99 %.2f)\n", r.generate,
                   mean(r.steps) * 1e3, percentile(r.steps, 50) * 1e3, percentile(r.steps, 95) * 1e3,
                   percentile(r.steps, 99) * 1e3);
    text += format("decode takes %.1f%% of the time\n\n", 100 * r.decode_share());
    text += "phase    tokens   ms/pass   MB/pass   op/byte     Gop/s   of roof   limit\n";
    for (const RooflinePoint &point : r.points)
        text += format("%-8s %6lld %9.2f %9.1f %9.1f %9.1f %8.1f%%   %s\n", point.phase.c_str(),
                       static_cast<long long>(point.tokens), point.seconds * 1e3, point.cost.bytes() / 1e6,
                       point.cost.intensity(), point.rate() / 1e9, 100 * share_of_roof(r, point),
                       memory_limits(r, point) ? "memory" : "arithmetic");
    return text;
}

Plot plot_of(const Roofline &r) {
    const RooflinePoint &decode = r.points.back(), &longest = r.points[r.points.size() - 2];
    const auto limit = [&](const RooflinePoint &point) {
        return memory_limits(r, point) ? "memory" : "arithmetic";
    };
    Plot plot;
    plot.title =
        std::string("Decode is limited by ") + limit(decode) + ", a long prefill by " + limit(longest);
    plot.x = {"operations per byte", true};
    plot.y = {"operations per second", true};
    Series roof{format("roof: %.3g GB/s, %.3g Gop/s", r.bandwidth / 1e9, r.multiply_rate / 1e9),
                {},
                Series::Style::Curve};
    const double left = std::min(r.points.front().cost.intensity(), decode.cost.intensity()) / 2,
                 right = std::max(2 * r.ridge(), 1.5 * longest.cost.intensity());
    for (const double intensity : {left, r.ridge(), right})
        roof.points.emplace_back(intensity, r.roof(intensity));
    Series prefill{format("prefill of 1 to %lld tokens", static_cast<long long>(longest.tokens)),
                   {},
                   Series::Style::Points};
    for (const RooflinePoint &point : r.points)
        if (&point != &decode) prefill.points.emplace_back(point.cost.intensity(), point.rate());
    const Series decoding{format("decode at a depth of %d", r.prompt),
                          {{decode.cost.intensity(), decode.rate()}},
                          Series::Style::Points};
    plot.series = {roof, prefill, decoding};
    return plot;
}

Json json_of(const Roofline &r, const std::string &model, const std::string &device) {
    Json points = Json::array(), steps = Json::array();
    for (const double seconds : r.steps) steps.push_back(seconds * 1e3);
    for (const RooflinePoint &point : r.points) {
        const measure::PassCost &cost = point.cost;
        points.push_back({{"phase", point.phase},
                          {"tokens", point.tokens},
                          {"depth", point.depth},
                          {"ms", point.seconds * 1e3},
                          {"operations", cost.operations()},
                          {"matrix_operations", cost.matrix_operations},
                          {"attention_operations", cost.attention_operations},
                          {"bytes", cost.bytes()},
                          {"weight_bytes", cost.weights},
                          {"cache_bytes", cost.cache_read + cost.cache_written},
                          {"state_bytes", cost.states},
                          {"intensity", cost.intensity()},
                          {"operations_per_second", point.rate()},
                          {"roof_operations_per_second", r.roof(cost.intensity())},
                          {"roof_share", share_of_roof(r, point)},
                          {"limit", memory_limits(r, point) ? "memory" : "arithmetic"}});
    }
    return {{"model", model},
            {"device", device},
            {"bandwidth_bytes_per_second", r.bandwidth},
            {"bandwidth_of", r.bandwidth_of},
            {"fits_cache", r.in_cache},
            {"multiply_operations_per_second", r.multiply_rate},
            {"multiply_of", r.multiply_of},
            {"ridge", r.ridge()},
            {"prompt", r.prompt},
            {"generate", r.generate},
            {"ttft_ms", r.first_token * 1e3},
            {"tpot_ms",
             {{"mean", mean(r.steps) * 1e3},
              {"p50", percentile(r.steps, 50) * 1e3},
              {"p95", percentile(r.steps, 95) * 1e3},
              {"p99", percentile(r.steps, 99) * 1e3}}},
            {"steps_ms", std::move(steps)},
            {"decode_share", r.decode_share()},
            {"points", std::move(points)}};
}

}  // namespace

int bench_roofline(const BenchOptions &options, const std::string &plot, Io &io) {
    check_exhibit(options, "--roofline");
    check_plot_file(plot, io);
    measure::RooflineOptions how{.repetitions = options.repetitions, .types = options.model.cache.types};
    if (options.both.size() > 1) throw UsageError("--roofline times one prompt and answer: give -pg once");
    if (!options.both.empty()) how.prompt = options.both[0].prompt, how.generate = options.both[0].generate;
    if (how.generate < 2)
        throw UsageError("--roofline times the tokens after the first: give -pg P,G with a G of at least 2");
    decode::StopRequest stop;
    const InterruptScope interrupts(stop);
    decode::EngineOptions flags = engine_options(options.model, io, stop);
    // No prefill pass exceeds the context length that the model was trained for.
    const gguf::File file = gguf::File::open(flags.model);
    const int64_t own = model::read_hyper_parameters(file).context_length;
    const int64_t longest = flags.context > 0 ? std::min(own, flags.context) : own;
    how.longest_pass = static_cast<int32_t>(std::clamp<int64_t>(longest, 1, how.longest_pass));
    const int64_t needed = std::max<int64_t>(how.longest_pass, int64_t{how.prompt} + how.generate);
    if (flags.context == 0) flags.context = needed;
    if (flags.context < needed)
        throw UsageError("the request needs a context of " + std::to_string(needed) + " tokens: omit -c");
    flags.batch = std::max(flags.batch, how.longest_pass);  // a pass is one step
    how.threads = options.model.threads > 0 ? options.model.threads : kernels::cpu::physical_cores();
    how.show = [&io](const std::string &test) { show_progress(io, test); };
    measure::DeviceLimits limits(flags.device);
    decode::Engine engine(flags);
    for (const std::string &note : engine.notes()) io.note(note);
    const kernels::DeviceInfo device = engine.executor().device();
    if (device.kind.find('+') != std::string::npos)
        throw UsageError(
            "the model is split between GPU and CPU, so it has no single roofline: use --device cpu, or "
            "a GPU that holds all layers");
    if (device.kind == "cpu") limits.use_cpu(how.threads, engine.model().program.weight_bytes_per_token());
    const Roofline measured = measure::measure_roofline(how, engine, limits, stop);
    show_progress(io, "");
    const Plot picture = plot_of(measured);
    write_plot_file(plot, picture, io);
    io.out.write(options.json() ? dump(json_of(measured, options.model.path, device.name), 2)
                                : table(measured, device.name) + "\n" + terminal_plot(picture, plot_size()));
    return exit_code::kDone;
}

}  // namespace runnel::commands
