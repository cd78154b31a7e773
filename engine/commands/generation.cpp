#include "engine/commands/generation.h"
#include "engine/commands/sandbox/sandbox_option.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <optional>
#include <system_error>

#include "engine/commands/load_progress.h"
#include "engine/commands/sandbox/sandbox.h"
#include "engine/commands/stored_prompts.h"
#include "engine/decode/error.h"
#include "engine/decode/sampling_settings.h"
#include "engine/model/draft_head.h"
#include "gguf/base/bytes.h"
#include "gguf/base/random_seed.h"
#include "gguf/output_file.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

namespace fs = std::filesystem;

// llama.cpp's syntax: "15043+1", "15043-0.5", "15043-inf".
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

// The number of layers; nullopt: "auto". As in llama.cpp, "all", -1 and any number from the layer count on mean all.
std::optional<int64_t> gpu_layers(const std::string &text) {
    constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
    if (text == "auto") return std::nullopt;
    if (text == "all") return kAll;
    int64_t layers = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), layers);
    if (error != std::errc() || rest != text.data() + text.size())
        throw UsageError("--gpu-layers: expected a number, auto or all, not " + text);
    return layers < 0 ? kAll : layers;
}

// A file of statistics from an earlier run may be replaced; it is known by its beginning, the program's name.
gguf::OutputOptions stats_output(const Io &io) {
    return {.overwrite = io.overwrite, .own = R"({"program":"runnel",)"};
}

// The canonical path, even if the file does not exist yet.
fs::path destination(fs::path path) {
    constexpr int kMostLinks = 40;
    std::error_code error;
    for (int links = 0; links < kMostLinks && fs::is_symlink(path, error); ++links)
        path = path.parent_path() / fs::read_symlink(path, error);
    fs::path whole = fs::weakly_canonical(fs::absolute(path, error), error);
    return error ? path : whole;
}

// Several outputs may share a device or a pipe.
bool is_same_file(const fs::path &a, const fs::path &b) {
    std::error_code error;
    const fs::path first = destination(a), second = destination(b);
    if (fs::exists(first, error) && !fs::is_regular_file(first, error)) return false;
    return first == second || fs::equivalent(first, second, error);
}

kernels::WeightStorage storage_of(const std::string &load_mode) {
    return {.copied = load_mode == "copy" || load_mode == "mlock",
            .locked = load_mode == "mlock" || load_mode == "mmap+mlock",
            .rearranged = load_mode == "auto"};
}

std::optional<int64_t> cpu_experts(const ModelOptions &options) {
    if (options.cpu_moe) return std::numeric_limits<int64_t>::max();
    return options.cpu_moe_layers;
}

// PlacementRequest::gpu_experts.
std::optional<int32_t> gpu_experts(const ModelOptions &options) {
    if (options.gpu_experts == "all") return std::nullopt;
    if (cpu_experts(options))
        throw UsageError(
            "--gpu-experts runs all experts on the GPU, --cpu-moe and --n-cpu-moe some on the CPU: leave one "
            "out");
    return options.gpu_experts == "auto" ? 0 : std::stoi(options.gpu_experts);
}

}  // namespace

ModelOptions model_for(ModelOptions model, const GenerationFlags &generation) {
    // Writing weights in another order takes as long as it saves in about so many tokens.
    constexpr int64_t kWorthRearranging = 16;
    const bool few = generation.predict >= 0 && generation.predict < kWorthRearranging;
    if (model.load_mode == "auto" && few) model.load_mode = "mmap";
    return model;
}

decode::EngineOptions engine_options(const ModelOptions &options) {
    if (options.cache.sinks > 0 && options.cache.window == 0) throw UsageError("--sinks needs --window");
    if (!options.tensor_split.empty() && options.split == decode::Split::None)
        throw UsageError(
            "--tensor-split divides the layers, but --split none puts them on one GPU: leave one out");
    if (on_several_processes(options) && !options.several_processes)
        throw UsageError(
            "--split tensor or context on several processes works with run and perplexity alone (batch has "
            "--shard "
            "auto)");
    gguf::note_model(options.path);
    return {.model = options.path,
            .threads = options.threads,
            .context = options.context,
            .batch = options.batch,
            .sequences = 1,
            .device = {options.device,
                       {gpu_layers(options.gpu_layers), cpu_experts(options), options.tensor_split,
                        gpu_experts(options)},
                       options.split},
            .cache = options.cache,
            .weights = storage_of(options.load_mode)};
}

decode::EngineOptions engine_options(const ModelOptions &options, Io &io, const decode::StopRequest &stop) {
    decode::EngineOptions made = engine_options(options);
    made.progress = load_progress(io, stop);
    made.on_silence = [&io](int process, std::chrono::seconds waited) {
        io.note("process " + std::to_string(process) + " has not answered for " +
                std::to_string(waited.count()) + " s; still waiting (Ctrl-C ends all processes)");
    };
    return made;
}

namespace {

// nullopt for a model, and for a file that cannot be read: loading it later reports the error.
std::optional<model::HeadKind> head_of(const std::string &path) {
    if (path.empty()) return std::nullopt;
    try {
        return model::head_kind(gguf::File::open(path));
    } catch (const gguf::FileError &) {
        return std::nullopt;
    }
}

decode::DraftingOptions options_of(const DraftFlags &flags, const ModelOptions &model) {
    if (flags.least > flags.most) throw UsageError("--draft-min is larger than --draft-max");
    if (!flags.model.empty() && flags.self_layers > 0)
        throw UsageError("--draft-model and --self-draft cannot be combined: choose one");
    const auto head = head_of(flags.model);
    if (flags.needs_head && head != flags.needs_head)
        throw UsageError(std::string("--spec-type ") +
                         (flags.needs_head == model::HeadKind::Eagle3 ? "draft-eagle3" : "draft-dflash") +
                         " needs --draft-model FILE with " +
                         std::string(model::head_title(*flags.needs_head)));
    const bool other = !flags.model.empty() || flags.self_layers > 0;
    // (llama.cpp's draft-mtp is also its name for an assistant's drafts.)
    if (flags.mtp == decode::Mtp::On && other && head != model::HeadKind::Assistant)
        throw UsageError("--mtp cannot be combined with --draft-model or --self-draft: choose one");
    decode::DraftingOptions options;
    options.head = head.has_value();
    if (!flags.model.empty() && !head) {
        ModelOptions draft;
        draft.path = flags.model;
        draft.threads = model.threads;
        draft.batch = model.batch;
        draft.device = flags.device;
        draft.gpu_layers = flags.gpu_layers;
        draft.load_mode = model.load_mode;
        draft.split = decode::runs_all_layers(model.split) ? decode::Split::Layer : model.split;
        options.model = engine_options(draft);
    }
    options.self_layers = flags.self_layers;
    options.lookup = flags.lookup;
    options.mtp = other ? decode::Mtp::Off : flags.mtp;
    options.how = {.length = {.least = flags.least, .most = flags.most, .branches = flags.branches},
                   .least_probability = flags.least_probability,
                   .rule = flags.rule};
    return options;
}

}  // namespace

std::optional<decode::DraftingOptions> drafting_options(const DraftFlags &flags, const ModelOptions &model) {
    decode::DraftingOptions options = options_of(flags, model);
    if (options.mtp == decode::Mtp::Auto) options.mtp = decode::Mtp::Off;
    if (!options.any()) return std::nullopt;
    return options;
}

std::unique_ptr<decode::Drafting> drafting(const DraftFlags &flags, const ModelOptions &model,
                                           decode::Engine &engine, int32_t sequences, Io &io,
                                           const decode::StopRequest &stop) {
    decode::DraftingOptions options = options_of(flags, model);
    if (engine.draft_blocks().empty()) {
        if (options.mtp == decode::Mtp::On) throw UsageError("--mtp: " + engine.no_draft_block());
        options.mtp = decode::Mtp::Off;
        if (options.head) throw UsageError("--draft-model: " + engine.no_draft_block());
    }
    if (!options.any()) return nullptr;
    if (const model::DraftHead *head = engine.head();
        head && (flags.device != "auto" || flags.gpu_layers != "auto"))
        io.note(std::string(model::head_title(head->kind)) +
                " runs on the model's device; options for another device are ignored");
    if (options.model) options.model->progress = load_progress(io, stop);
    if (const int32_t layers = engine.model().hyper.block_count; flags.self_layers >= layers)
        throw UsageError("--self-draft: the model has " + std::to_string(layers) +
                         " layers, so the draft can use the first 1 to " + std::to_string(layers - 1));
    auto made = std::make_unique<decode::Drafting>(options, engine, sequences);
    for (const std::string &note : made->notes()) io.note(note);
    if (!made->any()) return nullptr;
    return made;
}

decode::MakeSpeculator speculators(decode::Drafting *drafts) {
    if (!drafts) return {};
    return [drafts] { return drafts->speculator(); };
}

void leave_room(decode::EngineOptions &engine, const DraftFlags &flags) {
    if (flags.model.empty() && flags.self_layers == 0) engine.mtp = flags.mtp;
    engine.first_layers = flags.self_layers;
    if (head_of(flags.model)) {
        gguf::note_model(flags.model);
        engine.head = flags.model;
        return;
    }
    const bool same = flags.device == "auto" || flags.device == engine.device.device;
    if (same && flags.gpu_layers != "0") engine.beside = flags.model;
}

completion::FileSampling file_sampling(const GenerationFlags &flags, const gguf::File &file) {
    completion::FileSampling found = completion::file_sampling(file);
    std::erase_if(found.values,
                  [&](const auto &value) { return flags.chosen.contains(value.setting->name); });
    if (flags.chosen.contains("samplers")) found.samplers.reset();
    return found;
}

GenerationFlags with_file_sampling(GenerationFlags flags, const gguf::File &file, Io &io) {
    const completion::FileSampling found = file_sampling(flags, file);
    for (const std::string &note : found.notes) io.note(note);
    found.apply(flags.sampling);
    return flags;
}

std::string file_sampling_text(const completion::FileSampling &sampling) {
    return sampling.any() ? "sampling " + sampling.text() + " (from the file)\n" : std::string();
}

Json file_sampling_json(const completion::FileSampling &sampling) {
    Json json = Json::object();
    for (const auto &[setting, value] : sampling.values) json[std::string(setting->name)] = value;
    if (sampling.samplers) json["samplers"] = decode::samplers_text(*sampling.samplers);
    return json;
}

decode::SamplingOptions sampling_options(const GenerationFlags &flags) {
    decode::SamplingOptions options = flags.sampling;
    for (const decode::SamplingSetting &setting : decode::sampling_settings())
        if (!std::isfinite(setting.get(options)))
            throw UsageError("--" + std::string(setting.name) + ": not a finite number");
    if (!flags.dry_breakers.empty()) options.dry_breakers = flags.dry_breakers;
    std::erase(options.dry_breakers, "none");
    options.seed = flags.seed.value_or(base::random_seed());
    for (const std::string &bias : flags.logit_bias) options.logit_bias.push_back(parse_bias(bias));
    return options;
}

completion::Limits limits(const GenerationFlags &flags) {
    completion::Limits limits;
    limits.max_tokens = flags.predict;
    limits.stops = flags.stops;
    for (const std::string &text : flags.bans)
        if (text.empty()) throw UsageError("--ban: the text is empty");
    limits.bans = flags.bans;
    limits.ignore_end = flags.ignore_eos;
    return limits;
}

void note_calls(const completion::Done &done, Io &io, std::string_view where) {
    if (!done.note.empty()) io.note(done.note);
    for (const text::ToolCall &call : done.calls)
        io.note("the model calls " + gguf::printable(call.name) + " with " +
                gguf::printable(call.arguments, 1000) + std::string(where));
}

bool ended_in_reasoning(const completion::Done &done, bool has_reasoning, bool has_text) {
    return done.reason != completion::FinishReason::Interrupt && has_reasoning && !has_text &&
           done.calls.empty();
}

completion::FinishReason finish_reason(const decode::StopRequest &stop) {
    const bool deadline = stop.reason() == decode::StopRequest::Reason::Deadline;
    return deadline ? completion::FinishReason::Deadline : completion::FinishReason::Interrupt;
}

Report report(const std::string &model, uint64_t seed, const decode::Engine &engine,
              const completion::Done &done) {
    return {model,
            seed,
            engine.load_seconds(),
            done.timings,
            done.usage.prompt_tokens,
            done.usage.completion_tokens,
            std::string(finish_name(done)),
            engine.placement_details(),
            done.speculation,
            {},
            {},
            engine.expert_traffic()};
}

Json timings_json(const Report &report) {
    return {{"load_ms", milliseconds(report.load_seconds)},
            {"ttft_ms", milliseconds(report.timings.first_token_seconds)},
            {"prefill_tps", report.timings.prefill_rate()},
            {"decode_tps", report.timings.decode_rate()}};
}

Json speculation_json(const decode::SpeculationCounts &counts) {
    Json json = {{"sources", counts.sources},
                 {"drafted", counts.drafted},
                 {"accepted", counts.accepted},
                 {"acceptance_rate", counts.acceptance_rate()},
                 {"mean_accepted", counts.mean_accepted()},
                 {"branches", counts.branches},
                 {"branches_accepted", counts.branches_accepted},
                 {"passes", counts.passes},
                 {"plain_passes", counts.plain_passes},
                 {"draft_ms", milliseconds(counts.draft_seconds)},
                 {"verify_ms", milliseconds(counts.verify_seconds)},
                 {"plain_ms", milliseconds(counts.plain_seconds)},
                 {"speedup", counts.speedup()}};
    if (!counts.failure.empty()) json["failure"] = counts.failure;
    return json;
}

std::string speculation_text(const decode::SpeculationCounts &c) {
    const char *remark = c.drafted == 0 ? "; no draft was worth verifying"
                         : c.plain_passes > 4 * c.passes
                             ? "; mostly off, because plain decoding is faster here"
                             : "";
    char text[256];
    std::snprintf(
        text, sizeof text,
        "drafts   %9lld  tokens (%s), %lld accepted (%.0f%%, %.1f a pass); %.0f ms drafting; speed %.2fx "
        "of plain steps%s\n",
        static_cast<long long>(c.drafted), c.sources.c_str(), static_cast<long long>(c.accepted),
        100 * c.acceptance_rate(), c.mean_accepted(), c.draft_seconds * 1e3, c.speedup(), remark);
    std::string line = text;
    if (c.branches > 0)
        line += "         " + std::to_string(c.branches) + " alternative branches, " +
                std::to_string(c.branches_accepted) + " taken\n";
    if (!c.failure.empty()) line += "         the draft failed: " + gguf::printable(c.failure, 1024) + "\n";
    return line;
}

namespace {

Json experts_json(const kernels::ExpertTraffic &experts) {
    return {
        {"chosen", experts.chosen}, {"fetched", experts.fetched}, {"fetched_bytes", experts.fetched_bytes}};
}

std::string experts_text(const kernels::ExpertTraffic &experts) {
    char text[160];
    std::snprintf(
        text, sizeof text, "experts  %9llu  chosen, %llu of them fetched from host memory (%.0f%%, %s)\n",
        static_cast<unsigned long long>(experts.chosen), static_cast<unsigned long long>(experts.fetched),
        100.0 * static_cast<double>(experts.fetched) / static_cast<double>(experts.chosen),
        base::mebibytes(experts.fetched_bytes).c_str());
    return text;
}

}  // namespace

Json report_json(const Report &report) {
    Json json = {{"program", "runnel"},
                 {"model", report.model},
                 {"seed", report.seed},
                 {"prompt_tokens", report.prompt_tokens},
                 {"prefill_tokens", report.timings.prefill_tokens},
                 {"completion_tokens", report.tokens},
                 {"finish_reason", report.finish_reason},
                 {"placement", report.placement},
                 {"timings", timings_json(report)}};
    if (report.speculation) json["speculation"] = speculation_json(*report.speculation);
    if (report.stored) json["stored_prompts"] = stored_json(*report.stored);
    if (report.sampling.any()) json["file_sampling"] = file_sampling_json(report.sampling);
    if (report.experts.chosen > 0) json["experts"] = experts_json(report.experts);
    return json;
}

std::string report_text(const Report &report) {
    const completion::Timings &t = report.timings;
    char text[512];
    std::snprintf(
        text, sizeof text,
        "load     %9.1f ms\n"
        "prefill  %9.1f ms  %lld tokens (%lld from the cache)  %.1f tokens/s\n"
        "first    %9.1f ms  to the first token\n"
        "decode   %9.1f ms  %zu tokens  %.1f tokens/s\n"
        "finish   %s, seed %llu\n"
        "device   %s\n",
        report.load_seconds * 1e3, t.prefill_seconds * 1e3, static_cast<long long>(t.prefill_tokens),
        static_cast<long long>(report.prompt_tokens) - static_cast<long long>(t.prefill_tokens),
        t.prefill_rate(), t.first_token_seconds * 1e3, t.decode_seconds * 1e3, report.tokens, t.decode_rate(),
        report.finish_reason.c_str(), static_cast<unsigned long long>(report.seed), report.placement.c_str());
    return text + (report.experts.chosen > 0 ? experts_text(report.experts) : std::string()) +
           file_sampling_text(report.sampling) +
           (report.speculation ? speculation_text(*report.speculation) : std::string()) +
           (report.stored ? stored_text(*report.stored) : std::string());
}

void note_inputs(std::initializer_list<std::optional<std::string>> paths) {
    for (const auto &path : paths)
        if (path && *path != "-") gguf::note_read(*path);
}

void check_stats_file(const StatsFlags &flags, const Io &io,
                      std::initializer_list<std::optional<std::string>> others) {
    if (flags.file.empty()) return;
    for (const auto &other : others)
        if (other && is_same_file(flags.file, *other))
            throw UsageError("--stats-file and another output are both " + gguf::printable(*other, 4096) +
                             ": choose another --stats-file");
    gguf::check_output(flags.file, stats_output(io));
}

void write_stats(const StatsFlags &flags, const Report &report, Io &io) {
    write_stats(flags, report_text(report), report_json(report), io);
}

void write_stats(const StatsFlags &flags, const std::string &text, const Json &numbers, Io &io) {
    const SandboxState &sandbox = sandbox_state();
    if (flags.print) io.progress(text + "sandbox  " + sandbox.text + "\n");
    Json all = numbers;
    all["sandbox"] = {{"files", sandbox.files}, {"calls", sandbox.calls}};
    const std::string json = dump(all);
    if (!flags.file.empty()) {
        gguf::OutputFile file(flags.file, stats_output(io));
        file.write(std::as_bytes(std::span(json)));
        file.commit();
    }
    if (flags.fd >= 0) Output(flags.fd, "the descriptor of --stats-fd").write(json);
}

}  // namespace runnel::commands
