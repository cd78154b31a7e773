// `compare` and `bench --compare`: models side by side, in size, speed and quality.
#include <algorithm>
#include <deque>

#include "engine/commands/bench/bench_exhibits.h"
#include "engine/commands/cache_types.h"
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

// A model with its settings.
struct Variant {
    ModelOptions model;
    std::string name;         // the file's name, and the settings that are not the same for all
    uint64_t file_bytes = 0;  // of all parts
};

std::string settings_of(const ModelOptions &model, const std::vector<ModelOptions> &all) {
    const auto varies = [&](auto value) {
        return std::ranges::any_of(all, [&](const ModelOptions &one) { return value(one) != value(model); });
    };
    std::string text;
    if (varies([](const ModelOptions &one) { return one.cache.types.k; }))
        text += std::string(", K ") + name_of(model.cache.types.k);
    if (varies([](const ModelOptions &one) { return one.cache.types.v; }))
        text += std::string(", V ") + name_of(model.cache.types.v);
    if (varies([](const ModelOptions &one) { return one.threads; })) text += format(", -t %d", model.threads);
    if (varies([](const ModelOptions &one) { return one.batch; })) text += format(", -b %d", model.batch);
    if (varies([](const ModelOptions &one) { return one.gpu_layers; })) text += ", -ngl " + model.gpu_layers;
    if (varies([](const ModelOptions &one) { return one.load_mode; })) text += ", -lm " + model.load_mode;
    return text;
}

// Every file with every combination of the listed settings.
std::vector<Variant> variants_of(const BenchOptions &options, const ExhibitOptions &exhibit) {
    std::vector<std::string> paths = {options.model.path};
    paths.insert(paths.end(), exhibit.compare.begin(), exhibit.compare.end());
    std::vector<Variant> variants;
    for (const std::string &path : paths)
        for (const ModelOptions &model : options.variants) {
            variants.push_back(
                {.model = model, .name = file_name(path) + settings_of(model, options.variants)});
            variants.back().model.path = path;
        }
    if (variants.size() < 2)
        throw UsageError("--compare-lists needs a list to compare: -ctk f16,q8_0, for example");
    constexpr size_t kMost = 64;
    if (variants.size() > kMost)
        throw UsageError("--compare takes turns with at most 64 models and settings: shorten the lists");
    return variants;
}

std::string compare_table(const std::vector<ComparedModel> &models, const std::vector<Variant> &variants,
                          const CompareOptions &how, const std::string &device) {
    std::string text = device + "\n\n";
    for (size_t i = 0; i < variants.size(); ++i) text += format("%zu  ", i + 1) + variants[i].name + "\n";
    text += format("\nprefill of %d and decode of %d tokens, medians of %d turns; x: to the first model\n",
                   how.prompt, how.generate, how.turns);
    text += "         file   weights of a token           prefill             decode\n";
    for (size_t i = 0; i < models.size(); ++i) {
        const ComparedModel &m = models[i];
        text += format("%-3zu %9s %20s", i + 1, size_text(variants[i].file_bytes, 1).c_str(),
                       size_text(static_cast<uint64_t>(m.weight_bytes), 1).c_str());
        text += format(" %9.0f/s %5.2fx", measure::median(m.prefill), m.prefill_gain(models[0]));
        text += format(" %9.1f/s %5.2fx\n", measure::median(m.decode), m.decode_gain(models[0]));
    }
    if (!models[0].quality) return text + "\n-f FILE compares the quality on a text\n";
    text += format("\nquality on %lld tokens of the text; KL divergence from the first model\n",
                   static_cast<long long>(models[0].quality->tokens));
    text += "               perplexity             mean KL    same first choice\n";
    for (size_t i = 0; i < models.size(); ++i) {
        const measure::Perplexity &quality = *models[i].quality;
        text += format("%-3zu %10.4f +/- %-9.4f", i + 1, quality.value, quality.error);
        if (const auto &d = quality.divergence)
            text += format(" %18.3e %19.2f%%", d->mean, 100 * d->same_top);
        text += "\n";
    }
    return text;
}

Plot compare_plot(const std::vector<ComparedModel> &models, const std::vector<Variant> &variants) {
    Plot plot;
    const bool has_quality = models[0].quality.has_value();
    plot.title = has_quality ? "Quality against speed" : "Speed against size";
    plot.x = {has_quality ? "tokens per second of decode" : "megabytes that a token reads"};
    plot.y = {has_quality ? "perplexity (lower is better)" : "tokens per second of decode"};
    for (size_t i = 0; i < models.size() && i < 8; ++i) {
        const double speed = measure::median(models[i].decode);
        plot.series.push_back({variants[i].name,
                               {has_quality ? std::pair(speed, models[i].quality->value)
                                            : std::pair(models[i].weight_bytes / 1e6, speed)},
                               Series::Style::Points});
    }
    return plot;
}

Json compare_json(const std::vector<ComparedModel> &models, const std::vector<Variant> &variants,
                  const CompareOptions &how, const std::string &device) {
    Json list = Json::array();
    for (size_t i = 0; i < models.size(); ++i) {
        const ComparedModel &m = models[i];
        const ModelOptions &model = variants[i].model;
        Json one = {{"model", model.path},
                    {"name", variants[i].name},
                    {"cache_type_k", name_of(model.cache.types.k)},
                    {"cache_type_v", name_of(model.cache.types.v)},
                    {"load_mode", model.load_mode},
                    {"file_bytes", variants[i].file_bytes},
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
    check_exhibit(options, "--compare", {.lists = exhibit.compare_lists});
    check_plot_file(exhibit.plot, io);
    CompareOptions how{.turns = options.repetitions};
    if (options.both.size() > 1) throw UsageError("--compare times one request: give -pg once");
    if (!options.both.empty()) how.prompt = options.both[0].prompt, how.generate = options.both[0].generate;
    decode::StopRequest stop;
    const InterruptScope interrupts(stop);
    if (options.file) how.text = read_all(*options.file, io.in, &stop);
    if (options.file && how.text.empty()) throw InputError("-f: the text is empty");
    std::vector<Variant> variants = variants_of(options, exhibit);
    std::deque<decode::Engine> engines;
    std::vector<decode::Engine *> pointers;
    for (Variant &variant : variants) {
        decode::EngineOptions flags = engine_options(variant.model, io, stop);
        flags.context = std::max({flags.context, int64_t{how.prompt} + how.generate, int64_t{how.context}});
        pointers.push_back(&engines.emplace_back(flags));
        variant.file_bytes = engines.back().file().file_bytes();
        for (const std::string &note : engines.back().notes()) io.note(variant.name + ": " + note);
    }
    const std::vector<ComparedModel> models = measure::compare_models(
        pointers, how, stop, [&](const std::string &test) { show_progress(io, test); });
    show_progress(io, "");
    const Plot picture = compare_plot(models, variants);
    write_plot_file(exhibit.plot, picture, io);
    const std::string device = engines.front().executor().device().name;
    io.out.write(options.json() ? dump(compare_json(models, variants, how, device), 2)
                                : compare_table(models, variants, how, device) + "\n" +
                                      terminal_plot(picture, plot_size()));
    return exit_code::kDone;
}

}  // namespace runnel::commands
