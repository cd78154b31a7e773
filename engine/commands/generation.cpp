#include "engine/commands/generation.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>

#include "engine/decode/random.h"
#include "gguf/output_file.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

// "15043+1", "15043-0.5", "15043-inf", as llama.cpp writes them.
std::pair<text::TokenId, float> parse_bias(const std::string &text) {
    const char *const end = text.data() + text.size();
    text::TokenId id = 0;
    const auto [sign, id_error] = std::from_chars(text.data(), end, id);
    float bias = 0;
    const bool has_sign = id_error == std::errc() && id >= 0 && sign != end && (*sign == '+' || *sign == '-');
    const auto [rest, error] =
        has_sign ? std::from_chars(sign + 1, end, bias) : std::from_chars(end, end, bias);
    if (!has_sign || error != std::errc() || rest != end || std::isnan(bias) ||
        (*sign == '+' && std::isinf(bias)))
        throw UsageError("--logit-bias " + gguf::quoted(text) +
                         ": write a token id, + or -, and a number: 15043+1.5, 15043-inf");
    return {id, *sign == '-' ? -bias : bias};
}

double milliseconds(double seconds) {
    return std::round(seconds * 1e6) / 1e3;
}

// llama.cpp's habits: "all" or any number from the count of layers on is everything, and so is -1.
std::optional<int64_t> gpu_layers(const std::string &text) {
    constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
    if (text == "auto") return std::nullopt;
    if (text == "all") return kAll;
    int64_t layers = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), layers);
    if (error != std::errc() || rest != text.data() + text.size())
        throw UsageError("--gpu-layers: a number, auto or all, not " + text);
    return layers < 0 ? kAll : layers;
}

}  // namespace

decode::EngineOptions engine_options(const ModelOptions &options) {
    if (options.cache.sinks > 0 && options.cache.window == 0)
        throw UsageError("--sinks needs a --window that leaves something out");
    return {.model = options.path,
            .threads = options.threads,
            .context = options.context,
            .batch = options.batch,
            .sequences = 1,
            .device = {options.device, gpu_layers(options.gpu_layers)},
            .cache = options.cache};
}

decode::SamplingOptions sampling_options(const GenerationFlags &flags) {
    decode::SamplingOptions options = flags.sampling;
    const std::pair<const char *, float> numbers[] = {{"--temp", options.temperature},
                                                      {"--top-p", options.top_p},
                                                      {"--min-p", options.min_p},
                                                      {"--typical", options.typical},
                                                      {"--repeat-penalty", options.repeat_penalty},
                                                      {"--presence-penalty", options.presence_penalty},
                                                      {"--frequency-penalty", options.frequency_penalty}};
    for (const auto &[name, value] : numbers)
        if (!std::isfinite(value)) throw UsageError(std::string(name) + ": not a finite number");
    options.seed = flags.seed.value_or(decode::random_seed());
    for (const std::string &bias : flags.logit_bias) options.logit_bias.push_back(parse_bias(bias));
    return options;
}

decode::GenerationOptions generation_options(const GenerationFlags &flags) {
    decode::GenerationOptions options;
    options.max_tokens = flags.predict;
    options.stops = flags.stops;
    options.ignore_end = flags.ignore_eos;
    return options;
}

std::optional<size_t> Room::keeping() const {
    switch (overflow) {
        case Overflow::Error:
            return std::nullopt;
        case Overflow::Shift:
            return std::min(fixed, context / 2);
        case Overflow::DropMiddle:
            break;
    }
    return std::max(std::min(fixed, context / 2), context * 3 / 8);
}

size_t Room::fit(std::vector<text::TokenId> &prompt) const {
    const std::optional<size_t> kept = keeping();
    if (!kept || prompt.size() <= context) return 0;
    const size_t wanted = std::max<size_t>(context - context / 4, 1), dropped = prompt.size() - wanted;
    const auto from = prompt.begin() + static_cast<std::ptrdiff_t>(std::min(*kept, wanted - 1));
    prompt.erase(from, from + static_cast<std::ptrdiff_t>(dropped));
    return dropped;
}

Json timings_json(const Report &report) {
    return {{"load_ms", milliseconds(report.load_seconds)},
            {"ttft_ms", milliseconds(report.timings.first_token_seconds)},
            {"prefill_tps", report.timings.prefill_rate()},
            {"decode_tps", report.timings.decode_rate()}};
}

Json report_json(const Report &report) {
    return {{"model", report.model},
            {"seed", report.seed},
            {"prompt_tokens", report.timings.prompt_tokens},
            {"prefill_tokens", report.timings.prefill_tokens},
            {"completion_tokens", report.tokens},
            {"finish_reason", report.finish_reason},
            {"timings", timings_json(report)}};
}

std::string report_text(const Report &report) {
    const decode::Timings &t = report.timings;
    char text[512];
    std::snprintf(text, sizeof text,
                  "load     %9.1f ms\n"
                  "prefill  %9.1f ms  %lld tokens (%lld from the cache)  %.1f tokens/s\n"
                  "first    %9.1f ms  to the first token\n"
                  "decode   %9.1f ms  %zu tokens  %.1f tokens/s\n"
                  "finish   %s, seed %llu\n",
                  report.load_seconds * 1e3, t.prefill_seconds * 1e3,
                  static_cast<long long>(t.prefill_tokens),
                  static_cast<long long>(t.prompt_tokens - t.prefill_tokens), t.prefill_rate(),
                  t.first_token_seconds * 1e3, t.decode_seconds * 1e3, report.tokens, t.decode_rate(),
                  report.finish_reason.c_str(), static_cast<unsigned long long>(report.seed));
    return text;
}

void write_stats(const StatsFlags &flags, const Report &report, Io &io) {
    write_stats(flags, report_text(report), report_json(report), io);
}

void write_stats(const StatsFlags &flags, const std::string &text, const Json &numbers, Io &io) {
    if (flags.print) io.progress(text);
    const std::string json = dump(numbers);
    if (!flags.file.empty()) {
        gguf::OutputFile file(flags.file);
        file.write(std::as_bytes(std::span(json)));
        file.commit();
    }
    if (flags.fd >= 0) Output(flags.fd, "the descriptor of --stats-fd").write(json);
}

std::string system_prompt(const std::optional<std::string> &text, const std::optional<std::string> &file,
                          int in, const decode::StopRequest *stop) {
    if (text && file) throw UsageError("give the system prompt with --system or --system-file, not both");
    std::string prompt = text ? *text : file ? read_all(*file, in, stop) : std::string();
    if (file && prompt.ends_with('\n')) prompt.pop_back();
    return prompt;
}

}  // namespace runnel::commands
