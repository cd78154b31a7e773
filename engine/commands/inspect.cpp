// Shows the content of a file: metadata, tensors, and the memory needed to run it. Works on files that cannot be run.
#include <algorithm>
#include <cstdio>
#include <optional>

#include "engine/commands/cache_types.h"
#include "engine/commands/commands.h"
#include "engine/commands/figures.h"
#include "engine/commands/generation.h"
#include "engine/commands/json.h"
#include "engine/completion/file_sampling.h"
#include "engine/decode/memory_plan.h"
#include "engine/model/assistant.h"
#include "engine/model/dflash.h"
#include "engine/model/draft_block.h"
#include "engine/model/draft_head.h"
#include "engine/model/eagle3.h"
#include "engine/model/model.h"
#include "engine/model/window.h"
#include "gguf/file.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

constexpr uint64_t kShortArray = 16;           // arrays of up to this many elements are shown whole
constexpr uint64_t kFirstElements = 8;         // of longer arrays, only this many elements are shown
constexpr size_t kLongText = size_t{1} << 20;  // text of more bytes is cut to kFirstText
constexpr size_t kFirstText = 1024;
constexpr int kMostValues = 4096;  // limit for the values shown of nested arrays

struct Summary {
    std::string architecture;
    std::optional<int64_t> context_length;
    uint64_t parameters = 0, tensor_bytes = 0;
    std::optional<decode::MemoryPlan> memory;  // nullopt: it cannot be run
    std::string not_runnable;                  // the reason
    std::optional<model::HeadTarget> head;     // of a draft head

    double bits_per_weight() const {
        return parameters == 0 ? 0
                               : 8.0 * static_cast<double>(tensor_bytes) / static_cast<double>(parameters);
    }
};

// The next-token-prediction blocks, if `run` can use them.
std::vector<kernels::Program> draft_blocks(const gguf::File &file, const model::Model &model,
                                           const InspectOptions &options) {
    if (options.cache.window > 0 || !decode::whole_group(model.program)) return {};
    try {
        return model::draft_blocks(file, options.context);
    } catch (const model::ModelError &) {
        return {};
    }
}

Summary summarize(const gguf::File &file, const InspectOptions &options) {
    Summary s;
    if (const gguf::Value *value = file.find("general.architecture"))
        s.architecture = value->as_string().value_or("").substr(0, kFirstText);
    if (const gguf::Value *value = file.find(s.architecture + ".context_length"))
        s.context_length = value->as_int();
    for (const gguf::Tensor &tensor : file.tensors()) {
        s.parameters += static_cast<uint64_t>(tensor.elements());
        s.tensor_bytes += tensor.bytes;
    }
    try {
        if (model::head_kind(file)) s.head = model::head_target(file);
        model::Model model = model::build(file, options.context);
        if (options.cache.window > 0)
            model::impose_window(model.program, options.cache.window, options.cache.sinks);
        const std::vector<kernels::Program> blocks = draft_blocks(file, model, options);
        s.memory = decode::memory_plan(model, {.context = options.context,
                                               .sequences = options.sequences,
                                               .batch = options.batch,
                                               .types = options.cache.types,
                                               .draft_blocks = blocks});
    } catch (const std::runtime_error &error) {
        s.not_runnable = error.what();
    }
    return s;
}

Json scalar(const gguf::Value &value, bool whole) {
    if (const auto b = value.type() == gguf::ValueType::Bool ? value.as_bool() : std::nullopt) return *b;
    if (const auto s = value.as_string()) {
        if (whole || s->size() <= kLongText) return std::string(*s);
        return {{"length", s->size()}, {"first", std::string(s->substr(0, kFirstText))}};
    }
    if (value.type() == gguf::ValueType::F32 || value.type() == gguf::ValueType::F64)
        return value.as_float().value_or(0);
    if (const auto i = value.as_int()) return *i;
    if (const auto f = value.as_float()) return *f;
    return nullptr;  // an integer outside int64
}

// Long arrays (vocabularies) and texts are shortened to their length and beginning unless `arrays`. Reads no more
// of the file than it shows, because a file may claim gigabytes. `left`: values that may still be shown.
Json to_json(const gguf::Value &value, bool arrays, int &left) {
    if (value.type() != gguf::ValueType::Array) return scalar(value, arrays);
    bool whole = arrays || value.size() <= kShortArray;
    Json list = Json::array();
    gguf::Cursor cursor(value.payload());
    for (uint64_t i = 0; i < (whole ? value.size() : kFirstElements); ++i) {
        if (!arrays && --left < 0) {
            whole = false;
            break;
        }
        list.push_back(to_json(gguf::Value::read(cursor, value.element_type()), arrays, left));
    }
    if (whole) return list;
    return Json{{"length", value.size()}, {"first", std::move(list)}};
}

Json to_json(const gguf::Value &value, bool arrays) {
    int left = kMostValues;
    return to_json(value, arrays, left);
}

Json tensor_list(const gguf::File &file) {
    Json list = Json::array();
    for (const gguf::Tensor &t : file.tensors()) {
        Json shape = Json::array();
        for (uint32_t d = 0; d < t.rank; ++d) shape.push_back(t.shape[d]);
        list.push_back({{"name", std::string(t.name)},
                        {"type", std::string(gguf::traits(t.type).name)},
                        {"shape", std::move(shape)},
                        {"offset", t.offset},
                        {"bytes", t.bytes}});
    }
    return list;
}

Json gpu_json(const decode::GpuPlan &plan) {
    Json json = {{"name", plan.gpu.name}, {"free", plan.gpu.memory_free}, {"gpu_layers", 0}};
    if (!plan.part) return json;
    const decode::Placement &p = plan.part->placement;
    json["layers"] = p.layers + 1;
    json["gpu_layers"] = p.gpu_layers;
    json["cpu_moe_layers"] = p.cpu_experts;
    json["placement"] = plan.placement;
    if (!plan.part->missing.empty()) json["missing"] = plan.part->missing;
    json["context"] = plan.part->context.context;
    json["weights"] = plan.part->gpu.weights;
    json["cache"] = plan.part->gpu.cache;
    json["work"] = plan.part->gpu.work;
    return json;
}

Json head_json(const model::HeadTarget &head) {
    constexpr const char *kKinds[] = {model::kEagle3, model::kAssistant, model::kDFlash};
    return {{"kind", kKinds[static_cast<size_t>(head.kind)]},
            {"target_width", head.width},
            {"target_layers", head.layers},
            {"draft_tokens", head.draft_rows > 0 ? Json(head.draft_rows) : Json()}};
}

void print_json(const gguf::File &file, const Summary &s, const InspectOptions &options, Io &io) {
    Json json;
    json["architecture"] = s.architecture;
    json["parameters"] = s.parameters;
    json["bits_per_weight"] = s.bits_per_weight();
    json["context_length"] = s.context_length ? Json(*s.context_length) : Json();
    json["file_bytes"] = file.file_bytes();
    json["version"] = file.version();
    json["runnable"] = s.not_runnable.empty();
    if (!s.not_runnable.empty()) json["problem"] = s.not_runnable;
    if (s.head) json["draft_head"] = head_json(*s.head);
    json["memory"] = {{"weights", s.tensor_bytes},
                      {"weights_read_per_token", s.memory ? Json(s.memory->read_per_token) : Json()},
                      {"cache_per_1k_tokens", s.memory ? Json(s.memory->cache_per_1k) : Json()}};
    if (s.memory) {
        json["memory"]["context"] = s.memory->context;
        json["memory"]["sequences"] = options.sequences;
        json["memory"]["type_k"] = name_of(options.cache.types.k);
        json["memory"]["type_v"] = name_of(options.cache.types.v);
        json["memory"]["cache_at_context"] = s.memory->cache_at_context;
        if (s.memory->draft_block > 0) json["memory"]["draft_block"] = s.memory->draft_block;
        if (s.memory->gpu) json["memory"]["gpu"] = gpu_json(*s.memory->gpu);
    }
    if (const completion::FileSampling sampling = completion::file_sampling(file); sampling.any())
        json["sampling"] = file_sampling_json(sampling);
    Json metadata = Json::object();
    for (const auto &[key, value] : file.metadata())
        metadata[std::string(key)] = to_json(value, options.arrays);
    json["metadata"] = std::move(metadata);
    json["tensors"] = tensor_list(file);
    io.out.write(dump(json, 2));
}

std::string count_text(uint64_t count) {
    char text[32];
    const double c = static_cast<double>(count);
    if (c >= 1e9)
        std::snprintf(text, sizeof text, "%.2f B", c / 1e9);
    else if (c >= 1e6)
        std::snprintf(text, sizeof text, "%.1f M", c / 1e6);
    else
        std::snprintf(text, sizeof text, "%.1f K", c / 1e3);
    return text;
}

std::string line(std::string_view name, const std::string &value) {
    std::string padded(name);
    padded.resize(std::max<size_t>(padded.size(), 18), ' ');
    return padded + " " + value + "\n";
}

// "20 of 33 layers on the GPU with a context of 4096: 7.2 GiB of 7.5 GiB free"
std::string gpu_text(const decode::GpuPlan &plan) {
    const std::string free = size_text(plan.gpu.memory_free) + " free";
    if (!plan.part) return "no layer fits on the GPU, which has " + free;
    const std::string &missing = plan.part->missing;
    return plan.placement + " with a context of " + std::to_string(plan.part->context.context) + ": " +
           size_text(plan.part->gpu.all()) + " of " + free + (missing.empty() ? "" : " (" + missing + ")");
}

// "EAGLE-3, for a model of width 4096; reads its layers 2, 16, 29; drafts 32000 of its tokens"
std::string head_text(const model::HeadTarget &head) {
    const std::string width = std::to_string(head.width);
    if (head.kind == model::HeadKind::Assistant)
        return "Gemma 4 assistant, for a model of width " + width + "; reads the model's cache";
    std::string layers;
    for (const int64_t layer : head.layers) layers += (layers.empty() ? "" : ", ") + std::to_string(layer);
    return std::string(head.kind == model::HeadKind::Eagle3 ? "EAGLE-3" : "DFlash") +
           ", for a model of width " + width + "; reads its layers " + layers + "; drafts " +
           (head.draft_rows > 0 ? std::to_string(head.draft_rows) : "all") + " of its tokens";
}

std::string shape_text(const gguf::Tensor &t) {
    std::string text = "[";
    for (uint32_t d = 0; d < t.rank; ++d) text += (d ? ", " : "") + std::to_string(t.shape[d]);
    return text + "]";
}

std::string value_text(const gguf::Value &value, bool arrays) {
    const Json json = to_json(value, arrays);
    if (json.is_object() && json["first"].is_string())
        return gguf::printable(json["first"].get_ref<const std::string &>(), 200) + " (" +
               std::to_string(value.size()) + " bytes in all)";
    if (json.is_object()) {
        const std::string first = json["first"].dump(-1, ' ', false, Json::error_handler_t::replace);
        return gguf::printable(std::string_view(first).substr(0, first.size() - 1), 120) + ", ...] (" +
               std::to_string(value.size()) + " in all)";
    }
    return gguf::printable(json.dump(-1, ' ', false, Json::error_handler_t::replace), arrays ? 1 << 20 : 200);
}

void print_text(const gguf::File &file, const Summary &s, const InspectOptions &options, Io &io) {
    std::string text =
        line("file", gguf::printable(options.path, 4096) + " (GGUF " + std::to_string(file.version()) + ", " +
                         size_text(file.file_bytes()) + ")");
    text += line("architecture", s.architecture.empty() ? "not given" : gguf::printable(s.architecture));
    text += line("parameters",
                 count_text(s.parameters) + " in " + std::to_string(file.tensors().size()) + " tensors");
    if (s.head) text += line("draft head", head_text(*s.head));
    char bits[32];
    std::snprintf(bits, sizeof bits, "%.2f", s.bits_per_weight());
    text += line("bits per weight", bits);
    if (s.context_length) text += line("context length", std::to_string(*s.context_length));
    const completion::FileSampling sampling = completion::file_sampling(file);
    if (sampling.any()) text += line("sampling", sampling.text() + " unless an option says otherwise");
    for (const std::string &note : sampling.notes) text += line("", note);
    text += line("memory, weights", size_text(s.tensor_bytes));
    if (s.memory) {
        text += line("read per token", size_text(s.memory->read_per_token) + " of weights");
        text += line("memory, cache",
                     size_text(s.memory->cache_per_1k) + " per 1024 tokens, " +
                         size_text(s.memory->cache_at_context) + " for " +
                         (options.sequences > 1 ? std::to_string(options.sequences) + " x " : "") +
                         std::to_string(s.memory->context));
        const size_t block = s.memory->draft_block;
        if (block > 0)
            text += line("memory, drafts",
                         size_text(block) + " more with the next-token-prediction block (--mtp)");
        text += line("memory, in all", size_text(s.tensor_bytes + s.memory->cache_at_context));
        if (s.memory->gpu) text += line("memory, GPU", gpu_text(*s.memory->gpu));
    }
    if (!s.not_runnable.empty()) text += line("cannot be run", gguf::printable(s.not_runnable, 4096));
    text += "\nmetadata\n";
    for (const auto &[key, value] : file.metadata())
        text += "  " + gguf::printable(key) + " = " + value_text(value, options.arrays) + "\n";
    if (options.tensors) {
        text += "\ntensors\n";
        for (const gguf::Tensor &t : file.tensors())
            text += "  " + gguf::printable(t.name) + "  " + std::string(gguf::traits(t.type).name) + "  " +
                    shape_text(t) + "  " + std::to_string(t.bytes) + " bytes at " + std::to_string(t.offset) +
                    "\n";
    }
    io.out.write(text);
}

}  // namespace

int inspect(const InspectOptions &options, Io &io) {
    if (options.supported) return print_supported(options.json, io);
    const gguf::File file = gguf::File::open(options.path);
    if (options.cache.sinks > 0 && options.cache.window == 0) throw UsageError("--sinks needs --window");
    const Summary summary = summarize(file, options);
    if (options.json)
        print_json(file, summary, options, io);
    else
        print_text(file, summary, options, io);
    return exit_code::kDone;
}

}  // namespace runnel::commands
