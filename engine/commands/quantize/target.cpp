#include "engine/commands/quantize/target.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "engine/commands/figures.h"
#include "engine/commands/quantize/model_output.h"
#include "engine/commands/quantize/sensitivity_file.h"
#include "engine/decode/engine.h"
#include "engine/measure/sensitivity.h"
#include "engine/quantize/rows.h"
#include "gguf/output_file.h"
#include "gguf/printable.h"
#include "gguf/read_files.h"

namespace runnel::commands {
namespace {

using quantize::OpenTensor, quantize::Role, quantize::TypeOption;

std::vector<gguf::Type> types_in(const std::string &list) {
    std::vector<gguf::Type> types;
    std::istringstream stream(list);
    for (std::string name; std::getline(stream, name, ',');)
        types.push_back(type_named(name, "--target-types"));
    return types;
}

void measure_errors(std::vector<OpenTensor> &tensors, const quantize::QuantizeRequest &request, Io &io) {
    decode::StopRequest stop;
    const InterruptScope interrupts(stop);
    CountBar bar("comparing types", "%", 100, io);
    const bool is_done = quantize::measure_errors(tensors, request, [&](uint64_t done, uint64_t all) {
        bar.update(all > 0 ? static_cast<int64_t>(100 * done / all) : 100);
        return !stop.requested();
    });
    if (!is_done) throw Interrupted{};
}

std::vector<text::TokenId> tokens_of(const TargetOptions &target, const decode::Engine &engine,
                                     const decode::StopRequest &stop, Io &io) {
    std::vector<text::TokenId> tokens = engine.tokenizer().encode(read_all(target.text, io.in, &stop));
    const auto context = static_cast<size_t>(target.context);
    size_t chunks = tokens.size() / context;
    if (chunks == 0)
        throw InputError(gguf::printable(target.text, 1024) + " has " + std::to_string(tokens.size()) +
                         " tokens; a chunk needs " + std::to_string(context) + " (a smaller one with -c)");
    const int64_t most = target.chunks.value_or(16);
    if (most > 0) chunks = std::min(chunks, static_cast<size_t>(most));
    tokens.resize(chunks * context);
    return tokens;
}

// Replaces the slopes by measured ones. Groups that cannot be measured keep their figures, in the same scale.
SensitivityFile measure_slopes(std::vector<OpenTensor> &tensors, const QuantizeOptions &options,
                               const quantize::QuantizeRequest &request, Io &io) {
    decode::StopRequest stop;
    const InterruptScope interrupts(stop);
    decode::EngineOptions engine_options;
    engine_options.model = options.source;
    engine_options.threads = options.threads;
    engine_options.context = options.target.context;
    decode::Engine engine(engine_options);
    std::vector<text::TokenId> tokens = tokens_of(options.target, engine, stop, io);
    SensitivityFile file;
    file.text = options.target.text == "-" ? "stdin" : options.target.text;
    file.tokens = static_cast<int64_t>(tokens.size()) / options.target.context *
                  measure::scored_rows(options.target.context);
    const std::vector<quantize::SlopeGroup> groups = quantize::slope_groups(tensors);
    CountBar bar("measuring sensitivity", "groups", static_cast<int64_t>(groups.size()), io);
    bar.update(0);
    measure::Sensitivity model(engine, std::move(tokens), options.target.context, stop);
    double measured = 0, figures = 0;
    std::vector<const quantize::SlopeGroup *> unmeasured;
    for (const quantize::SlopeGroup &group : groups) {
        bar.update(&group - groups.data());
        std::vector<measure::ReplacedTensor> replaced;
        double error = 0, expected = 0;
        for (const size_t i : group.tensors) {
            const TypeOption *probe = quantize::probe_type(tensors[i]);
            if (!probe) continue;
            replaced.push_back({std::string(tensors[i].source->name), probe->type,
                                quantize::encode_tensor(*tensors[i].source, probe->type, request)});
            error += probe->error, expected += tensors[i].slope * probe->error;
            if (stop.requested()) throw Interrupted{};
        }
        const measure::Sensitivity::Result result = model.divergence(replaced, stop);
        if (!result.used || !(error > 0)) {
            unmeasured.push_back(&group);
            continue;
        }
        measured += result.divergence, figures += expected;
        for (const size_t i : group.tensors) tensors[i].slope = result.divergence / error;
    }
    for (const quantize::SlopeGroup *group : unmeasured) {
        for (const size_t i : group->tensors) tensors[i].slope *= figures > 0 ? measured / figures : 1;
        io.note(gguf::printable(group->name, 200) +
                ": the sensitivity cannot be measured; a fixed figure is used");
    }
    for (const OpenTensor &tensor : tensors)
        file.tensors[std::string(tensor.source->name)] = {tensor.source->elements(), tensor.slope};
    return file;
}

void read_slopes(std::vector<OpenTensor> &tensors, const std::string &path) {
    const SensitivityFile file = SensitivityFile::load(path);
    for (OpenTensor &tensor : tensors) {
        const auto found = file.tensors.find(std::string(tensor.source->name));
        if (found == file.tensors.end() || found->second.elements != tensor.source->elements())
            throw InputError(gguf::printable(path, 1024) + ": has no entry for " +
                             quantize::called(*tensor.source) + " of this size: measured on another model?");
        tensor.slope = found->second.slope;
    }
}

// A line of the report: tensors of one kind, or a sum of such lines.
struct Line {
    std::string name;
    int64_t weights = 0;
    uint64_t bytes = 0;  // as chosen
    double probed = 0;   // damage with all of them in the probe type
    double damage = 0;   // as chosen

    void add(const Line &other) {
        weights += other.weights, bytes += other.bytes;
        probed += other.probed, damage += other.damage;
    }
    double bits() const { return 8 * static_cast<double>(bytes) / static_cast<double>(weights); }
    double per_million() const { return probed / static_cast<double>(weights) * 1e6; }
};

constexpr std::pair<Role, std::string_view> kRoles[] = {
    {Role::Query, "attn_q"},           {Role::Key, "attn_k"},
    {Role::Value, "attn_v, attn_qkv"}, {Role::AttentionOutput, "attn_output"},
    {Role::Gate, "ffn_gate"},          {Role::Up, "ffn_up"},
    {Role::Down, "ffn_down"},          {Role::Embedding, "token_embd"},
    {Role::Output, "output"},          {Role::Other, "other"}};

bool is_attention(Role role) {
    return role == Role::Query || role == Role::Key || role == Role::Value || role == Role::AttentionOutput;
}
bool is_feed_forward(Role role) {
    return role == Role::Gate || role == Role::Up || role == Role::Down;
}

std::vector<Line> report_lines(const TargetResult &result) {
    std::vector<Line> lines;
    Line attention{"attention"}, feed_forward{"feed-forward"};
    for (const auto &[role, name] : kRoles) {
        Line line{std::string(name)};
        for (const OpenTensor &tensor : result.tensors) {
            if (tensor.role != role) continue;
            const TypeOption *chosen = tensor.find(result.choice.assigned.at(tensor.name)),
                             *probe = quantize::probe_type(tensor);
            line.weights += tensor.source->elements();
            line.bytes += chosen->bytes;
            line.probed += probe ? tensor.slope * probe->error : 0;
            line.damage += tensor.slope * chosen->error;
        }
        if (line.weights == 0) continue;
        if (is_attention(role)) attention.add(line);
        if (is_feed_forward(role)) feed_forward.add(line);
        lines.push_back(std::move(line));
    }
    for (Line *sum : {&attention, &feed_forward})
        if (sum->weights > 0) lines.push_back(std::move(*sum));
    return lines;
}

std::string amount(const TargetResult &result, uint64_t bytes) {
    if (result.is_size) return size_text(bytes);
    return format("%.3f bits per weight",
                  8.0 * static_cast<double>(bytes) / static_cast<double>(result.choice.elements));
}

}  // namespace

TargetResult choose_types_for(const QuantizeOptions &options, const gguf::File &source,
                              const quantize::QuantizeRequest &request, Io &io) {
    const TargetOptions &target = options.target;
    const bool saves = !target.text.empty() && !target.sensitivity.empty();
    if (!target.text.empty() && target.text != "-") gguf::note_read(std::filesystem::path(target.text));
    if (saves) gguf::check_output(target.sensitivity, {.overwrite = options.overwrite});
    const std::vector<gguf::Type> own = types_in(target.types);
    TargetResult result{};
    result.tensors =
        quantize::open_tensors(source, request, target.types.empty() ? quantize::default_types() : own);
    result.is_size = target.size.has_value();
    const quantize::TypeTarget limit{target.size, target.bits_per_weight};
    quantize::choose_for_target(source, request, result.tensors, limit);  // throws at once if impossible
    measure_errors(result.tensors, request, io);
    result.is_measured = true;
    if (!target.text.empty()) {
        const SensitivityFile file = measure_slopes(result.tensors, options, request, io);
        if (saves) file.save(target.sensitivity, options.overwrite);
    } else if (!target.sensitivity.empty()) {
        read_slopes(result.tensors, target.sensitivity);
    } else {
        result.is_measured = false;
    }
    result.choice = quantize::choose_for_target(source, request, result.tensors, limit);
    return result;
}

std::string target_text(const TargetResult &result) {
    const quantize::TypeChoice &choice = result.choice;
    std::string text = "asked for " + amount(result, choice.asked) + ": " + amount(result, choice.bytes);
    if (result.is_size) text += " (" + std::to_string(choice.bytes) + " bytes)";
    text += ", possible " + amount(result, choice.smallest) + " to " + amount(result, choice.most);
    return text + (result.is_measured ? format("; estimated KL divergence %.4g", choice.damage)
                                      : "; sensitivity by fixed figures (measure it with -f TEXT)");
}

std::string report_text(const TargetResult &result) {
    const char *unit = result.is_measured ? "KL" : "damage";
    std::string text = format("%-18s %10s %6s %14s %14s %14s\n", "", "weights", "bits",
                              (std::string(unit) + " at 3 bits").c_str(), "per M weights",
                              (std::string(unit) + " chosen").c_str());
    for (const Line &line : report_lines(result))
        text += format("%-18s %9.2fM %6.2f %14.4g %14.4g %14.4g\n", line.name.c_str(),
                       static_cast<double>(line.weights) / 1e6, line.bits(), line.probed, line.per_million(),
                       line.damage);
    return text;
}

nlohmann::ordered_json target_json(const TargetResult &result) {
    const quantize::TypeChoice &choice = result.choice;
    nlohmann::ordered_json json = {{"unit", result.is_size ? "file" : "tensors"},
                                   {"asked", choice.asked},
                                   {"bytes", choice.bytes},
                                   {"smallest", choice.smallest},
                                   {"largest", choice.most},
                                   {"measured", result.is_measured},
                                   {"damage", choice.damage},
                                   {"tensors", nlohmann::ordered_json::array()},
                                   {"report", nlohmann::ordered_json::array()}};
    for (const OpenTensor &tensor : result.tensors)
        json["tensors"].push_back({{"name", gguf::printable(tensor.name, 4096)},
                                   {"type", gguf::traits(choice.assigned.at(tensor.name)).name},
                                   {"slope", tensor.slope},
                                   {"error", tensor.find(choice.assigned.at(tensor.name))->error}});
    for (const Line &line : report_lines(result))
        json["report"].push_back({{"kind", line.name},
                                  {"weights", line.weights},
                                  {"bits_per_weight", line.bits()},
                                  {"damage_at_3_bits", line.probed},
                                  {"damage", line.damage}});
    return json;
}

}  // namespace runnel::commands
