// `bench --attention`: what attention costs by depth.
#include <algorithm>

#include "engine/commands/bench/bench_exhibits.h"
#include "engine/commands/cache_types.h"
#include "engine/commands/figures.h"
#include "engine/commands/generation.h"
#include "engine/commands/json.h"
#include "engine/commands/plot/plot_output.h"
#include "engine/measure/attention_cost.h"
#include "engine/measure/planner.h"
#include "engine/model/model.h"
#include "gguf/file.h"
#include "kernels/cpu/pool.h"
#include "kernels/device.h"

namespace runnel::commands {
namespace {

using measure::AttentionCosts, measure::AttentionPass, measure::AttentionShape, measure::AttentionTime;

std::vector<int64_t> depths_of(const AttentionCosts &c) {
    std::vector<int64_t> depths;
    for (const AttentionTime &one : c.times) depths.push_back(one.pass.depth);
    std::ranges::sort(depths);
    depths.erase(std::unique(depths.begin(), depths.end()), depths.end());
    return depths;
}

const AttentionTime &own(const AttentionCosts &c, int64_t depth, int64_t tokens, int32_t window, bool fused) {
    return *c.find(depth, tokens, c.shape.kv_heads, window, fused);
}

// A number in 9 columns.
std::string column(double value) {
    return format(value < 99.95 ? "%9.2f" : value < 9999.5 ? "%9.1f" : "%9.0f", value);
}

std::string own_table(const AttentionCosts &c, int64_t tokens) {
    std::string text = tokens == 1 ? std::string("decode of one token:")
                                   : format("prefill of %lld tokens:", static_cast<long long>(tokens));
    text += format("\n%27s  %26s  %s\n", "scores", "MB moved", "microseconds per token");
    text += "   depth     full   window    full  window  unfused      full   window  unfused\n";
    for (const int64_t depth : depths_of(c)) {
        const AttentionTime *const all[] = {&own(c, depth, tokens, 0, true),
                                            &own(c, depth, tokens, c.window, true),
                                            &own(c, depth, tokens, 0, false)};
        text += format("%8lld", static_cast<long long>(depth));
        for (const int i : {0, 1}) text += format(" %8s", short_number(all[i]->pass.scores()).c_str());
        for (const int i : {0, 1, 2})
            text += format(i == 2 ? " %8.3g" : " %7.3g", all[i]->pass.bytes() / 1e6);
        text += " ";
        for (const AttentionTime *one : all) text += column(one->per_token() * 1e6);
        text += "\n";
    }
    return text + "\n";
}

std::string heads_table(const AttentionCosts &c) {
    const auto shapes = measure::compared_shapes(c.shape);
    if (shapes.size() < 2) return "";
    std::string text = "decode of one token, by the number of K/V heads for the same query heads:\n";
    text += "         ";
    for (const char *unit : {"MB", "us"})
        for (const auto &named : shapes)
            text +=
                format("%11s", format("%s %d %s", named.name.c_str(), named.shape.kv_heads, unit).c_str());
    text += "\n";
    for (const int64_t depth : depths_of(c)) {
        text += format("%8lld ", static_cast<long long>(depth));
        for (const bool bytes : {true, false})
            for (const auto &named : shapes) {
                const AttentionTime &one = *c.find(depth, 1, named.shape.kv_heads, 0, true);
                text +=
                    bytes ? format("%11.3g", one.pass.bytes() / 1e6) : format("%11.1f", one.seconds * 1e6);
            }
        text += "\n";
    }
    return text + "\n";
}

std::string shape_text(const AttentionCosts &c) {
    const AttentionShape &s = c.shape;
    return format("%d heads of %d values, ", s.heads, s.head_dim_k) +
           (s.latent ? std::string("one latent vector") : format("%d K/V heads", s.kv_heads)) +
           format(" (%s/%s), %d layers; window: %d%s", name_of(s.types.k), name_of(s.types.v), c.layers,
                  c.window, c.own_window ? ", the model's" : "");
}

std::string table(const AttentionCosts &c, const std::string &device, int threads) {
    std::string text = device + format(", threads: %d\n\n", threads) + shape_text(c) + "\n";
    text += "All figures are of one layer; times are the shortest of the repetitions.\n";
    text += "unfused: all scores are written to memory and read back, twice\n\n";
    text += own_table(c, 1) + own_table(c, c.chunk) + heads_table(c);
    return text + format("largest difference between fused and unfused results: %.1e of the largest\n",
                         c.largest_difference);
}

Series series_of(const AttentionCosts &c, const std::string &name, int64_t tokens, int32_t kv_heads,
                 int32_t window, bool fused) {
    Series series{name, {}};
    for (const int64_t depth : depths_of(c))
        if (const AttentionTime *one = c.find(depth, tokens, kv_heads, window, fused))
            series.points.emplace_back(static_cast<double>(depth), one->per_token() * 1e6);
    return series;
}

Plot plot_of(const AttentionCosts &c) {
    const int64_t deepest = depths_of(c).back();
    const AttentionTime &full = own(c, deepest, 1, 0, true), &window = own(c, deepest, 1, c.window, true);
    Plot plot;
    plot.title = format("Attention to %lld tokens takes %.3g times the time of a window of %d",
                        static_cast<long long>(deepest), full.seconds / window.seconds, c.window);
    plot.x = {"depth: tokens in the KV cache", true};
    plot.y = {"microseconds per token and layer", true};
    for (const auto &named : measure::compared_shapes(c.shape)) {
        const bool is_own = named.shape.kv_heads == c.shape.kv_heads;
        plot.series.push_back(
            series_of(c, named.name + format(" %d", named.shape.kv_heads) + (is_own ? " (the model)" : ""), 1,
                      named.shape.kv_heads, 0, true));
    }
    const int32_t kv_heads = c.shape.kv_heads;
    plot.series.push_back(series_of(c, format("window %d", c.window), 1, kv_heads, c.window, true));
    plot.series.push_back(series_of(c, format("prefill of %d, fused", c.chunk), c.chunk, kv_heads, 0, true));
    plot.series.push_back(
        series_of(c, format("prefill of %d, unfused", c.chunk), c.chunk, kv_heads, 0, false));
    return plot;
}

Json json_of(const AttentionCosts &c, const std::string &model, const std::string &device, int threads) {
    Json rows = Json::array();
    for (const AttentionTime &one : c.times) {
        const AttentionPass &pass = one.pass;
        rows.push_back({{"depth", pass.depth},
                        {"tokens", pass.tokens},
                        {"kind", one.heads},
                        {"kv_heads", pass.shape.kv_heads},
                        {"own", one.own},
                        {"window", pass.window},
                        {"fused", pass.fused},
                        {"scores", pass.scores()},
                        {"operations", pass.operations()},
                        {"cache_bytes", pass.cache_bytes()},
                        {"row_bytes", pass.row_bytes()},
                        {"matrix_bytes", pass.matrix_bytes()},
                        {"bytes", pass.bytes()},
                        {"us", one.seconds * 1e6},
                        {"us_per_token", one.per_token() * 1e6}});
    }
    return {{"model", model},
            {"device", device},
            {"threads", threads},
            {"layers", c.layers},
            {"heads", c.shape.heads},
            {"kv_heads", c.shape.kv_heads},
            {"head_dim_k", c.shape.head_dim_k},
            {"head_dim_v", c.shape.head_dim_v},
            {"latent", c.shape.latent},
            {"cache_type_k", name_of(c.shape.types.k)},
            {"cache_type_v", name_of(c.shape.types.v)},
            {"window", c.window},
            {"own_window", c.own_window},
            {"largest_difference", c.largest_difference},
            {"rows", std::move(rows)}};
}

measure::AttentionCostOptions cost_options(const BenchOptions &options, Io &io) {
    measure::AttentionCostOptions how;
    how.repetitions = options.repetitions, how.types = options.model.cache.types;
    for (const int32_t depth : options.depths)
        if (depth > 0) how.depths.push_back(depth);
    if (how.depths.empty()) how.depths = {256, 512, 1024, 2048, 4096, 8192, 16384};
    std::ranges::sort(how.depths);
    how.depths.erase(std::unique(how.depths.begin(), how.depths.end()), how.depths.end());
    if (how.depths.back() > 1 << 20)
        throw UsageError("--attention measures depths up to 1048576: -d is too large");
    how.window = options.model.cache.window;
    how.threads = options.model.threads > 0 ? options.model.threads : kernels::cpu::physical_cores();
    how.show = [&io](const std::string &test) { show_progress(io, test); };
    return how;
}

}  // namespace

int bench_attention(const BenchOptions &options, const std::string &plot, Io &io) {
    check_exhibit(options, "--attention", {.both = false, .depths = true});
    check_plot_file(plot, io);
    if (options.model.device != "auto" && options.model.device != "cpu")
        throw UsageError("--attention measures the kernels of the CPU: use --device cpu");
    const measure::AttentionCostOptions how = cost_options(options, io);
    decode::StopRequest stop;
    const InterruptScope interrupts(stop);
    const gguf::File file = gguf::File::open(options.model.path);
    const model::Model model = model::build(file);
    if (measure::cell_groups(model.program).empty())
        throw UsageError("no layer of the model has attention: there is nothing to measure");
    const AttentionCosts costs = measure::measure_attention(model.program, how, stop);
    show_progress(io, "");
    const Plot picture = plot_of(costs);
    write_plot_file(plot, picture, io);
    const std::string device = kernels::cpu_device(how.threads)->info().name;
    io.out.write(options.json()
                     ? dump(json_of(costs, options.model.path, device, how.threads), 2)
                     : table(costs, device, how.threads) + "\n" + terminal_plot(picture, plot_size()));
    return exit_code::kDone;
}

}  // namespace runnel::commands
