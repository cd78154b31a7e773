// (With the sanitizers, GCC 12 falsely reports <regex> as uninitialized: PR 105562.)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include "engine/commands/quantize/quantize.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "engine/commands/figures.h"
#include "engine/commands/quantize/awq_run.h"
#include "engine/commands/quantize/awq_sites.h"
#include "engine/commands/quantize/gptq_run.h"
#include "engine/commands/quantize/model_output.h"
#include "engine/commands/quantize/occurrences.h"
#include "engine/commands/quantize/target.h"
#include "engine/model/model.h"
#include "engine/quantize/model_parts.h"
#include "gguf/output_file.h"
#include "gguf/printable.h"
#include "gguf/quantize.h"
#include "gguf/read_files.h"

namespace runnel::commands {
namespace {

namespace fs = std::filesystem;

}  // namespace

gguf::Type type_named(const std::string &name, const std::string &option) {
    const quantize::Mix *mix = quantize::find_mix(name);
    // A mix of several types ("Q4_K_M") cannot be the type of one tensor; "Q4_K" can.
    const auto same = [](char a, char b) {
        return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
    };
    for (const quantize::Mix &candidate : quantize::mixes())
        if (std::ranges::equal(gguf::traits(candidate.base).name, name, same)) return candidate.base;
    throw UsageError(option + ": " + gguf::quoted(name) +
                     (mix ? " is a mix of types, not the type of one tensor" : " is not a tensor type"));
}

namespace {

const quantize::Mix &mix_named(const std::string &name) {
    if (const quantize::Mix *mix = quantize::find_mix(name)) return *mix;
    std::string names;
    for (const quantize::Mix &mix : quantize::mixes())
        names += (names.empty() ? "" : ", ") + std::string(mix.name);
    throw UsageError("there is no type " + gguf::quoted(name) + "; types: " + names);
}

std::vector<std::string> lines_of(const std::string &text) {
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) {
        if (line.ends_with('\r')) line.pop_back();
        if (!line.empty() && !line.starts_with('#')) lines.push_back(line);
    }
    return lines;
}

quantize::MixOptions mix_options(const QuantizeOptions &options) {
    quantize::MixOptions result;
    result.pure = options.pure;
    result.leave_output = options.leave_output;
    if (!options.output_type.empty()) result.output = type_named(options.output_type, "--output-tensor-type");
    if (!options.embedding_type.empty())
        result.embedding = type_named(options.embedding_type, "--token-embedding-type");
    std::vector<std::string> wishes = options.tensor_types;
    if (!options.tensor_type_file.empty())
        for (std::string &line : lines_of(read_all(options.tensor_type_file, 0)))
            wishes.push_back(std::move(line));
    for (const std::string &wish : wishes) {
        const size_t equals = wish.rfind('=');
        if (equals == std::string::npos || equals == 0)
            throw UsageError("--tensor-type takes PATTERN=TYPE, not " + gguf::quoted(wish));
        try {
            result.overrides.emplace_back(std::regex(wish.substr(0, equals), std::regex::icase),
                                          type_named(wish.substr(equals + 1), "--tensor-type"));
        } catch (const std::regex_error &) {
            throw UsageError("--tensor-type: " + gguf::quoted(wish.substr(0, equals)) +
                             " is not a regular expression");
        }
    }
    return result;
}

// The name of a method that needs a text; null for others.
const char *calibrating(quantize::Method method) {
    if (method == quantize::Method::Awq) return "awq";
    return method == quantize::Method::Gptq ? "gptq" : nullptr;
}

void check_target(const QuantizeOptions &options) {
    const TargetOptions &target = options.target;
    if (target.size.has_value() + target.bits_per_weight.has_value() + target.divergence.has_value() > 1)
        throw UsageError("--target-size, --target-bpw and --target-kl exclude each other");
    if (target.size && target.cost == quantize::Cost::Read)
        throw UsageError(
            "--target-size is a size on disk: with --cost read, use --target-bpw or --target-kl");
    if (target.divergence && target.text.empty() && (target.held_out.empty() || target.sensitivity.empty()))
        throw UsageError("--target-kl is measured: it needs -f TEXT, or --sensitivity and --held-out");
    if ((target.divergence || !target.held_out.empty()) && !options.pruned.empty())
        throw UsageError("--target-kl and --held-out cannot measure a model with pruned layers");
    if (!target.held_out.empty() && target.held_out == target.text)
        throw UsageError("--held-out must be another text than -f");
    if (target.is_given() && !target.held_out.empty() && target.text.empty() && target.sensitivity.empty())
        throw UsageError("--held-out needs -f TEXT or --sensitivity FILE");
    if (target.is_given() && options.pure)
        throw UsageError("--pure gives all tensors one type: omit it with a target");
    if (target.chunks == 0) throw UsageError("--chunks: at least 1, or -1 for all");
    const char *const method = calibrating(options.method);
    const std::string with_method = std::string("--method ") + (method ? method : "");
    if (method && target.text.empty() && !options.dry_run)
        throw UsageError(with_method + " needs a text to calibrate on: -f FILE");
    if (method && !options.pruned.empty())
        throw UsageError(with_method + " and --prune-layers exclude each other: prune in a first run");
    if (method && target.divergence)
        throw UsageError("--target-kl measures without " + with_method +
                         ": choose with --target-size or --target-bpw");
    if (method && target.is_given() && target.text == "-")
        throw UsageError("-f -: " + with_method + " with a target reads the text twice: give a file");
    if (options.method == quantize::Method::Absmax && target.is_given())
        throw UsageError("--method absmax and a target exclude each other: give a TYPE");
    if (options.method == quantize::Method::Absmax && !options.importance.empty())
        throw UsageError("--method absmax ignores importance: omit --imatrix");
    if (options.method == quantize::Method::Imatrix && options.importance.empty())
        throw UsageError("--method imatrix needs --imatrix FILE (runnel imatrix makes one from a text)");
    if (target.is_given()) return;
    for (const auto &[given, name] : {std::pair{!target.types.empty(), "--target-types"},
                                      {!target.text.empty() && !method, "-f"},
                                      {!target.sensitivity.empty(), "--sensitivity"},
                                      {!target.held_out.empty(), "--held-out"},
                                      {target.cost != quantize::Cost::Disk, "--cost"},
                                      {target.report, "--report"}})
        if (given)
            throw UsageError(std::string(name) + " needs --target-size, --target-bpw or --target-kl" +
                             (name == std::string_view("-f") ? ", or --method awq or gptq" : ""));
}

double bits_per_weight(const quantize::QuantizePlan &plan) {
    return plan.elements > 0
               ? 8.0 * static_cast<double>(plan.bytes_after) / static_cast<double>(plan.elements)
               : 0;
}

std::string summary(const quantize::QuantizePlan &plan) {
    char bits[48];
    std::snprintf(bits, sizeof bits, "%.2f bits per weight", bits_per_weight(plan));
    return size_text(plan.bytes_before) + " -> " + size_text(plan.bytes_after) + ", " + bits;
}

void print_plan(const quantize::QuantizePlan &plan, const TargetResult *target, const AwqSites *awq,
                bool json, Io &io) {
    if (json) {
        nlohmann::ordered_json result = {{"tensors", nlohmann::ordered_json::array()},
                                         {"bytes_before", plan.bytes_before},
                                         {"bytes_after", plan.bytes_after},
                                         {"bits_per_weight", bits_per_weight(plan)}};
        for (const quantize::PlannedTensor &tensor : plan.tensors)
            result["tensors"].push_back({{"name", gguf::printable(tensor.name, 4096)},
                                         {"from", gguf::traits(tensor.source->type).name},
                                         {"to", gguf::traits(tensor.type).name},
                                         {"bytes", tensor.bytes}});
        if (target) result["target"] = target_json(*target);
        if (target && target->held_out) result["held_out"] = held_out_json(*target->held_out);
        if (awq) result["awq"] = awq_json(*awq);
        io.out.write(result.dump() + "\n");
        return;
    }
    std::string text;
    for (const quantize::PlannedTensor &tensor : plan.tensors) {
        char line[160];
        std::snprintf(line, sizeof line, "%-8s %-8s %12s  ",
                      std::string(gguf::traits(tensor.source->type).name).c_str(),
                      std::string(gguf::traits(tensor.type).name).c_str(), size_text(tensor.bytes).c_str());
        text += line + gguf::printable(tensor.name, 4096) +
                (tensor.note.empty() ? "" : "  (" + tensor.note + ")") + "\n";
    }
    text += "all: " + summary(plan) + "\n";
    if (target) text += target_text(*target) + "\n";
    if (target && target->held_out) text += held_out_text(*target->held_out) + "\n";
    if (awq) {
        text += "awq: " + plural(awq->scalable.size(), "input", "inputs") + " of matrices can be scaled\n";
        for (const std::string &note : awq_notes(*awq)) text += note + "\n";
    }
    io.out.write(text);
}

// "KEY=TYPE:VALUE", the type one of int, float, bool and str.
std::pair<std::string, quantize::Override> parse_override(const std::string &text) {
    const UsageError bad("--override-kv takes KEY=TYPE:VALUE with the type int, float, bool or str, not " +
                         gguf::quoted(text));
    const size_t equals = text.find('='), colon = text.find(':', equals == text.npos ? 0 : equals);
    if (equals == text.npos || equals == 0 || colon == text.npos) throw bad;
    const std::string key = text.substr(0, equals), type = text.substr(equals + 1, colon - equals - 1),
                      value = text.substr(colon + 1);
    if (type == "str") return {key, value};
    if (type == "bool" && (value == "true" || value == "false")) return {key, value == "true"};
    const char *const begin = value.data(), *const end = begin + value.size();
    if (type == "int") {
        int64_t integer = 0;
        if (const auto [rest, error] = std::from_chars(begin, end, integer);
            error == std::errc() && rest == end)
            return {key, integer};
    } else if (type == "float") {
        double number = 0;
        if (const auto [rest, error] = std::from_chars(begin, end, number);
            error == std::errc() && rest == end && std::isfinite(static_cast<float>(number)))
            return {key, number};
    }
    throw bad;
}

int convert(const QuantizeOptions &options, Io &io) {
    check_target(options);
    quantize::QuantizeRequest request;
    if (!options.target.is_given()) request.mix = &mix_named(options.type);
    request.types = mix_options(options);
    request.method = options.method;
    request.keep_split = options.keep_split;
    for (const std::string &text : options.overrides) {
        auto wish = parse_override(text);
        std::erase_if(request.overrides, [&](const auto &earlier) { return earlier.first == wish.first; });
        request.overrides.push_back(std::move(wish));
    }
    request.allow_requantize = options.allow_requantize;
    request.pruned = {options.pruned.begin(), options.pruned.end()};
    request.threads = options.threads > 0
                          ? options.threads
                          : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    std::optional<quantize::Importance> importance;
    if (!options.importance.empty()) {
        importance = quantize::Importance::load(options.importance);
        request.importance = &*importance;
        request.importance_file = fs::path(options.importance).filename().string();
    }
    const gguf::File source = gguf::File::open(options.source);
    std::string destination = options.destination;
    const size_t parts = quantize::output_parts(source, request);
    if (parts > 1 && destination.ends_with(".gguf")) destination.resize(destination.size() - 5);
    const std::vector<fs::path> outputs = quantize::output_paths(destination, parts);
    if (!options.dry_run)
        for (const fs::path &path : outputs) check_destination(path, source, options.overwrite);
    std::optional<TargetResult> target;
    if (options.target.is_given()) {
        target = choose_types_for(options, source, request, io);
        request = quantize::with_choice(std::move(request), target->choice);
    }
    const quantize::QuantizePlan plan = quantize::plan_quantization(source, request);
    if (options.dry_run) {
        std::optional<AwqSites> awq;
        if (options.method == quantize::Method::Awq)
            awq = find_awq_sites(source, model::build(source, options.target.context).program, plan);
        print_plan(plan, target ? &*target : nullptr, awq ? &*awq : nullptr, options.json, io);
    }
    if (options.target.report && !(options.dry_run && options.json)) io.out.write(report_text(*target));
    if (options.dry_run) return exit_code::kDone;
    if (target) io.note(target_text(*target));
    if (target && target->held_out) io.note(held_out_text(*target->held_out));
    check_space(plan.bytes_after, destination);
    for (const quantize::PlannedTensor &tensor : plan.tensors)
        if (!tensor.note.empty()) io.note(gguf::printable(tensor.source->name, 200) + ": " + tensor.note);
    std::optional<GptqResult> gptq;
    std::optional<AwqResult> awq;
    if (const char *const method = calibrating(options.method)) {
        if (options.target.text != "-") gguf::note_read(fs::path(options.target.text));
        for (const fs::path &path : outputs) gguf::check_output(path, {.overwrite = true});
        const CalibrationText text{options.target.text, options.target.context,
                                   options.target.chunks.value_or(kCalibrationChunks)};
        if (options.method == quantize::Method::Gptq) {
            gptq = run_gptq(source, plan, request, text, io);
            for (const measure::ReplacedTensor &tensor : gptq->tensors)
                request.prepared.emplace(tensor.name, tensor.data);
        } else {
            awq = run_awq(source, plan, request, text, io);
            request.scales = &awq->scales;
        }
        for (const std::string &note : gptq ? gptq->notes : awq->notes) io.note(note);
        if (target) io.note(std::string("the divergence above is that of the types without ") + method);
    }
    const int code =
        with_bar("quantizing", plan.bytes_before, io, [&](const std::function<bool(uint64_t)> &progress) {
            request.progress = progress;
            return quantize::quantize(source, plan, request, destination);
        });
    if (code != exit_code::kDone) return code;
    io.note(gguf::printable(outputs.front().native(), 1024) +
            (parts > 1 ? " and " + std::to_string(parts - 1) + " more" : "") + ": " + summary(plan));
    return exit_code::kDone;
}

}  // namespace

int quantize_model(const QuantizeOptions &options, Io &io) {
    try {
        return convert(options, io);
    } catch (const quantize::QuantizeError &error) {
        throw InputError(error.what());
    }
}

}  // namespace runnel::commands
