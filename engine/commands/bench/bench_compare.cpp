// `bench --compare`: models side by side, in speed and quality.
#include <algorithm>
#include <deque>

#include "engine/commands/bench/bench_exhibits.h"
#include "engine/commands/figures.h"
#include "engine/commands/generation.h"
#include "engine/commands/json.h"
#include "engine/commands/plot/plot_output.h"
#include "engine/measure/compare.h"
#include "engine/measure/median.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

using measure::ComparedModel, measure::CompareOptions;

std::string file_name(const std::string &path) {
    return gguf::printable(path.substr(path.find_last_of('/') + 1), 4096);
}

std::string compare_table(const std::vector<ComparedModel> &models, const std::vector<std::string> &paths,
                          const CompareOptions &how, const std::string &device) {
    std::string text = device + "\n\n";
    for (size_t i = 0; i < paths.size(); ++i) text += format("%zu  ", i + 1) + file_name(paths[i]) + "\n";
    text += format("\nprefill of %d and decode of %d tokens, medians of %d turns; x: to the first model\n",
                   how.prompt, how.generate, how.turns);
    text += "    weights           prefill          decode          perplexity     mean KL\n";
    for (size_t i = 0; i < models.size(); ++i) {
        const ComparedModel &m = models[i];
        text += format("%zu %9s", i + 1, size_text(static_cast<uint64_t>(m.weight_bytes), 1).c_str());
        text += format(" %7.0f/s %5.2fx", measure::median(m.prefill), m.prefill_gain(models[0]));
        text += format(" %7.1f/s %5.2fx", measure::median(m.decode), m.decode_gain(models[0]));
        if (m.quality) text += format(" %7.3f +/- %.3f", m.quality->value, m.quality->error);
        if (m.quality && m.quality->divergence) text += format(" %9.2e", m.quality->divergence->mean);
        text += "\n";
    }
    if (!models[0].quality) text += "\n-f FILE compares the quality on a text\n";
    return text;
}

Plot compare_plot(const std::vector<ComparedModel> &models, const std::vector<std::string> &paths) {
    Plot plot;
    const bool has_quality = models[0].quality.has_value();
    plot.title = has_quality ? "Quality against speed" : "Speed against size";
    plot.x = {has_quality ? "tokens per second of decode" : "megabytes that a token reads"};
    plot.y = {has_quality ? "perplexity (lower is better)" : "tokens per second of decode"};
    for (size_t i = 0; i < models.size() && i < 8; ++i) {
        const double speed = measure::median(models[i].decode);
        plot.series.push_back({file_name(paths[i]),
                               {has_quality ? std::pair(speed, models[i].quality->value)
                                            : std::pair(models[i].weight_bytes / 1e6, speed)},
                               Series::Style::Points});
    }
    return plot;
}

Json compare_json(const std::vector<ComparedModel> &models, const std::vector<std::string> &paths,
                  const CompareOptions &how, const std::string &device) {
    Json list = Json::array();
    for (size_t i = 0; i < models.size(); ++i) {
        const ComparedModel &m = models[i];
        Json one = {{"model", paths[i]},
                    {"weight_bytes", m.weight_bytes},
                    {"prefill_tps", m.prefill},
                    {"decode_tps", m.decode},
                    {"prefill_gain", m.prefill_gain(models[0])},
                    {"decode_gain", m.decode_gain(models[0])}};
        if (m.quality) {
            one["perplexity"] = m.quality->value;
            one["error"] = m.quality->error;
            one["tokens"] = m.quality->tokens;
            if (const auto &d = m.quality->divergence) {
                one["mean_kl"] = d->mean;
                one["max_kl"] = d->largest;
                one["top1_agreement"] = d->same_top;
            }
        }
        list.push_back(std::move(one));
    }
    return {{"device", device},
            {"prompt", how.prompt},
            {"generate", how.generate},
            {"context", how.context},
            {"models", std::move(list)}};
}

}  // namespace

int bench_compare(const BenchOptions &options, const ExhibitOptions &exhibit, Io &io) {
    check_exhibit(options, "--compare");
    check_plot_file(exhibit.plot, io);
    CompareOptions how{.turns = options.repetitions};
    if (options.both.size() > 1) throw UsageError("--compare times one request: give -pg once");
    if (!options.both.empty()) how.prompt = options.both[0].prompt, how.generate = options.both[0].generate;
    decode::StopRequest stop;
    const InterruptScope interrupts(stop);
    if (options.file) how.text = read_all(*options.file, io.in, &stop);
    if (options.file && how.text.empty()) throw InputError("-f: the text is empty");
    std::vector<std::string> paths = {options.model.path};
    paths.insert(paths.end(), exhibit.compare.begin(), exhibit.compare.end());
    std::deque<decode::Engine> engines;
    std::vector<decode::Engine *> pointers;
    for (const std::string &path : paths) {
        ModelOptions model = options.model;
        model.path = path;
        decode::EngineOptions flags = engine_options(model, io, stop);
        flags.context = std::max({flags.context, int64_t{how.prompt} + how.generate, int64_t{how.context}});
        pointers.push_back(&engines.emplace_back(flags));
        for (const std::string &note : engines.back().notes()) io.note(file_name(path) + ": " + note);
    }
    const std::vector<ComparedModel> models = measure::compare_models(
        pointers, how, stop, [&](const std::string &test) { show_progress(io, test); });
    show_progress(io, "");
    const Plot picture = compare_plot(models, paths);
    write_plot_file(exhibit.plot, picture, io);
    const std::string device = engines.front().executor().device().name;
    io.out.write(options.json() ? dump(compare_json(models, paths, how, device), 2)
                                : compare_table(models, paths, how, device) + "\n" +
                                      terminal_plot(picture, plot_size()));
    return exit_code::kDone;
}

}  // namespace runnel::commands
