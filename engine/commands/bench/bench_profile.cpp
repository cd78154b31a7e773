// `bench --profile`: where the time of prefill and decode goes.
#include <algorithm>

#include "engine/commands/bench/bench_exhibits.h"
#include "engine/commands/figures.h"
#include "engine/commands/generation.h"
#include "engine/commands/json.h"
#include "engine/commands/plot/plot_output.h"
#include "engine/measure/profile.h"

namespace runnel::commands {
namespace {

using measure::PhaseProfile, measure::Profile, measure::ProfilePart;

double share(double seconds, const PhaseProfile &phase) {
    return phase.seconds > 0 ? 100 * seconds / phase.seconds : 0;
}

double per_pass(double seconds, const PhaseProfile &phase) {
    return phase.passes > 0 ? seconds * 1e3 / static_cast<double>(phase.passes) : 0;
}

// "17.3 GB/s": bytes that were read in the time of these kinds.
std::string rate(double bytes, double seconds) {
    return seconds > 0 ? format("%.1f GB/s", bytes / seconds / 1e9) : std::string("-");
}

double weight_seconds(const PhaseProfile &phase) {
    return phase.seconds_of("matrix") + phase.seconds_of("experts") + phase.seconds_of("logits");
}

std::string table(const Profile &profile, const std::string &device) {
    const PhaseProfile &prefill = profile.prefill, &decode = profile.decode;
    std::string text = device + "\n";
    text += format("prefill of %lld tokens: %.1f ms in %lld %s\n", static_cast<long long>(prefill.tokens),
                   prefill.seconds * 1e3, static_cast<long long>(prefill.passes),
                   prefill.passes == 1 ? "pass" : "passes");
    text += format("decode of %lld tokens: %.3f ms each\n\n", static_cast<long long>(decode.tokens),
                   per_pass(decode.seconds, decode));
    text += "                       prefill              decode\n";
    text += "step               ms/pass   share     ms/pass   share\n";
    std::vector<std::string> kinds;
    for (const PhaseProfile *phase : {&decode, &prefill})
        for (const ProfilePart &part : phase->parts)
            if (std::ranges::find(kinds, part.kind) == kinds.end()) kinds.push_back(part.kind);
    for (const std::string &kind : kinds)
        text += format("%-18s %7.3f  %5.1f%%     %7.3f  %5.1f%%\n", kind.c_str(),
                       per_pass(prefill.seconds_of(kind), prefill), share(prefill.seconds_of(kind), prefill),
                       per_pass(decode.seconds_of(kind), decode), share(decode.seconds_of(kind), decode));
    text += format("%-18s %7.3f  %5.1f%%     %7.3f  %5.1f%%   in the above\n", "waiting threads",
                   per_pass(prefill.waited(), prefill), share(prefill.waited(), prefill),
                   per_pass(decode.waited(), decode), share(decode.waited(), decode));
    text += format("\ndecode reads weights at %s, the cache at %s\n",
                   rate(decode.cost.weights, weight_seconds(decode)).c_str(),
                   rate(decode.cost.cache_read, decode.seconds_of("attention")).c_str());
    return text;
}

Plot plot_of(const PhaseProfile &decode) {
    Plot plot;
    Series series{"decode", {}, Series::Style::Line};
    double least = 0, most = 0;
    for (size_t i = 0; i < decode.layers.size(); ++i) {
        const double time = per_pass(decode.layers[i], decode) * 1e3;
        series.points.emplace_back(static_cast<double>(i), time);
        least = i == 0 ? time : std::min(least, time), most = std::max(most, time);
    }
    plot.title = format("A layer takes %.0f to %.0f microseconds per decoded token", least, most);
    plot.x = {"layer", false};
    plot.y = {"microseconds per token", false};
    plot.series = {series};
    return plot;
}

Json json_of(const PhaseProfile &phase) {
    Json parts = Json::array(), layers = Json::array();
    for (const ProfilePart &part : phase.parts)
        parts.push_back({{"kind", part.kind},
                         {"count", part.count},
                         {"ms", part.seconds * 1e3},
                         {"waited_ms", part.waited * 1e3},
                         {"share", share(part.seconds, phase) / 100}});
    for (const double seconds : phase.layers) layers.push_back(seconds * 1e3);
    return {{"passes", phase.passes},
            {"tokens", phase.tokens},
            {"ms", phase.seconds * 1e3},
            {"waited_ms", phase.waited() * 1e3},
            {"weight_bytes", phase.cost.weights},
            {"cache_bytes", phase.cost.cache_read},
            {"operations", phase.cost.operations()},
            {"parts", std::move(parts)},
            {"layers_ms", std::move(layers)}};
}

}  // namespace

int bench_profile(const BenchOptions &options, const std::string &plot, Io &io) {
    check_exhibit(options, "--profile");
    check_plot_file(plot, io);
    if (options.both.size() > 1) throw UsageError("--profile runs one request: give -pg once");
    measure::ProfileOptions how;
    if (!options.both.empty()) how = {options.both[0].prompt, options.both[0].generate};
    if (how.prompt < 1 || how.generate < 2)
        throw UsageError("--profile needs a prompt and two tokens of an answer: -pg P,G");
    decode::StopRequest stop;
    const InterruptScope interrupts(stop);
    decode::EngineOptions flags = engine_options(options.model, io, stop);
    const int64_t needed = int64_t{how.prompt} + how.generate;
    if (flags.context == 0) flags.context = needed;
    if (flags.context < needed)
        throw UsageError("the request needs a context of " + std::to_string(needed) + " tokens: omit -c");
    decode::Engine engine(flags);
    for (const std::string &note : engine.notes()) io.note(note);
    const kernels::DeviceInfo device = engine.executor().device();
    if (device.kind != "cpu") io.note("the steps on a GPU are not timed one by one: they are in \"pass\"");
    show_progress(io, "request");
    const Profile profile = measure::measure_profile(how, engine, stop);
    show_progress(io, "");
    const bool has_layers = profile.decode.layers.size() > 1;
    const Plot picture = has_layers ? plot_of(profile.decode) : Plot();
    if (has_layers) write_plot_file(plot, picture, io);
    if (options.json())
        io.out.write(dump({{"model", options.model.path},
                           {"device", device.name},
                           {"prefill", json_of(profile.prefill)},
                           {"decode", json_of(profile.decode)}},
                          2));
    else
        io.out.write(table(profile, device.name) +
                     (has_layers ? "\n" + terminal_plot(picture, plot_size()) : ""));
    return exit_code::kDone;
}

}  // namespace runnel::commands
