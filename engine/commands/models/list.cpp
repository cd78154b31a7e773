#include "engine/commands/models/list.h"

#include <algorithm>

#include "engine/commands/figures.h"
#include "engine/commands/json.h"
#include "engine/commands/weight_type.h"
#include "engine/decode/memory_plan.h"
#include "engine/model/model.h"
#include "gguf/file.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kContext = 4096;  // tokens; a model fits with at least this context

ListedModel::Fits fits(const gguf::File &file) {
    using Fits = ListedModel::Fits;
    const model::Model built = model::build(file);
    const int64_t own = built.hyper.context_length;
    const decode::MemoryPlan plan =
        decode::memory_plan(built, {.context = own > 0 ? std::min(own, kContext) : kContext});
    uint64_t weights = 0;
    for (const gguf::Tensor &tensor : file.tensors()) weights += tensor.bytes;
    const uint64_t need = weights + plan.cache_at_context;
    uint64_t memory = kernels::cpu_device()->info().memory_total;
    if (plan.gpu) {
        if (need <= plan.gpu->gpu.memory_free) return Fits::Gpu;
        memory += plan.gpu->gpu.memory_free;
    }
    return need <= memory ? Fits::Memory : Fits::No;
}

uint64_t size_of(const fs::path &path) {
    std::error_code error;
    const uint64_t bytes = fs::is_regular_file(path, error) ? fs::file_size(path, error) : 0;
    return error ? 0 : bytes;
}

std::string_view words(ListedModel::Fits fits) {
    switch (fits) {
        case ListedModel::Fits::Unknown:
            return "?";
        case ListedModel::Fits::No:
            return "no";
        case ListedModel::Fits::Memory:
            return "yes";
        case ListedModel::Fits::Gpu:
            return "gpu";
    }
    return "";
}

Json to_json(const ListedModel &listed) {
    const auto or_null = [](const std::string &text) { return text.empty() ? Json() : Json(text); };
    Json json = {
        {"name", listed.model.name},
        {"store", std::string(store_name(listed.model.store))},
        {"path", listed.model.path.string()},
        {"bytes", listed.bytes},
        {"type", or_null(listed.type)},
        {"architecture", or_null(listed.family)},
        {"parameters", listed.parameters ? Json(*listed.parameters) : Json()},
        {"fits",
         listed.fits == ListedModel::Fits::Unknown ? Json() : Json(listed.fits != ListedModel::Fits::No)},
        {"fits_gpu", listed.fits == ListedModel::Fits::Gpu}};
    if (!listed.model.problem.empty()) json["problem"] = listed.model.problem;
    return json;
}

// The path, with "~" for the home directory.
std::string short_path(const fs::path &path) {
    std::string text = path.string();
    const char *home = std::getenv("HOME");
    if (home && *home && text.starts_with(std::string(home) + "/"))
        text = "~" + text.substr(std::string_view(home).size());
    return gguf::printable(text, 4096);
}

// Columns as wide as their longest text, the last one unpadded.
std::string table(const std::vector<std::vector<std::string>> &rows) {
    std::vector<size_t> widths;
    for (const auto &row : rows)
        for (size_t i = 0; i < row.size(); ++i) {
            if (i == widths.size()) widths.push_back(0);
            widths[i] = std::max(widths[i], row[i].size());
        }
    std::string text;
    for (const auto &row : rows) {
        for (size_t i = 0; i + 1 < row.size(); ++i)
            text += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
        text += row.back() + "\n";
    }
    return text;
}

}  // namespace

ListedModel examine(const StoredModel &model) {
    ListedModel listed{
        .model = model, .bytes = size_of(model.path), .type = {}, .family = {}, .parameters = {}};
    if (!model.problem.empty()) return listed;
    try {
        const gguf::File file = gguf::File::open(model.path);
        listed.bytes = file.file_bytes();
        listed.type = weight_type(file);
        if (const gguf::Value *value = file.find("general.architecture"))
            listed.family = value->as_string().value_or("").substr(0, 64);
        uint64_t parameters = 0;
        for (const gguf::Tensor &tensor : file.tensors())
            parameters += static_cast<uint64_t>(tensor.elements());
        listed.parameters = parameters;
        listed.fits = fits(file);
    } catch (const std::runtime_error &error) {
        // Removes the file's name from the message, because the row has it already.
        std::string what = error.what();
        const std::string name = gguf::printable(model.path.string(), 4096);
        if (what.starts_with(name)) what = what.substr(name.size());
        if (what.starts_with(": ") || what.starts_with(" ")) what = what.substr(what.find_first_not_of(": "));
        listed.model.problem = what;
    }
    return listed;
}

int list_models(bool as_json, Io &io) {
    Json models = Json::array();
    std::vector<std::vector<std::string>> rows = {{"NAME", "SIZE", "TYPE", "FAMILY", "FITS", "PATH"}};
    for (const StoredModel &model : stored_models()) {
        const ListedModel listed = examine(model);
        if (as_json) {
            models.push_back(to_json(listed));
            continue;
        }
        const std::string &problem = listed.model.problem;
        rows.push_back(
            {gguf::printable(model.name, 200), listed.bytes > 0 ? size_text(listed.bytes, 1) : "",
             listed.type, gguf::printable(listed.family), std::string(words(listed.fits)),
             short_path(model.path) + (problem.empty() ? "" : " (" + gguf::printable(problem, 300) + ")")});
    }
    if (as_json)
        io.out.write(dump({{"models", std::move(models)}}, 2));
    else if (rows.size() > 1)
        io.out.write(table(rows));
    else
        io.note("no models in the caches of Hugging Face, llama.cpp, LM Studio and ollama");
    return exit_code::kDone;
}

}  // namespace runnel::commands
