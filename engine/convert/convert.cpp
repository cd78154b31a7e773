#include "engine/convert/convert.h"

#include <algorithm>

#include "engine/convert/families.h"
#include "engine/convert/tokenizer_import.h"
#include "gguf/file.h"
#include "gguf/printable.h"

namespace runnel::convert {
namespace {

namespace fs = std::filesystem;
using gguf::FileError;
using text::Json;

Config read_config(const fs::path &path) {
    try {
        return {text::parse_json(read_text(path)), gguf::printable(path.native(), 4096)};
    } catch (const text::JsonError &error) {
        throw FileError(gguf::printable(path.native(), 4096) + ": " + error.what());
    }
}

std::string known_names() {
    std::string names;
    for (const Family &family : families()) names += (names.empty() ? "" : ", ") + std::string(family.name);
    return names;
}

const Family &family_of(const Config &config) {
    const std::vector<std::string> names = config.strings("architectures");
    for (const Family &family : families())
        if (names.size() == 1 && names[0] == family.name) return family;
    config.fail("architectures", "is " + gguf::quoted(names.empty() ? "" : names[0]) +
                                     ", which cannot be converted (possible: " + known_names() + ")");
}

// MXFP4 of gpt-oss is copied as it is; other quantized weights would need their own formulas.
void check_quantization(const Config &config, const Family &family) {
    const Config quantization = config.object("quantization_config");
    if (!config.has("quantization_config")) return;
    const std::string method = quantization.string("quant_method", "");
    if (family.architecture != "gpt-oss" || method != "mxfp4")
        config.fail("quantization_config", "says that the weights are quantized (" + gguf::quoted(method) +
                                               "); convert the original model instead");
}

// Parts of the folder that are not the text model.
bool is_other_part(std::string_view name) {
    for (const std::string_view part :
         {"vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.visual.", "mtp.",
          "model.multi_modal_projector.", "model.embed_vision.", "model.audio_tower.", "model.embed_audio."})
        if (name.starts_with(part)) return true;
    return name.ends_with(".rotary_emb.inv_freq");
}

// "Qwen3-0.6B", also for a folder of Hugging Face's cache: models--Qwen--Qwen3-0.6B/snapshots/HASH.
std::string name_of(const fs::path &folder) {
    fs::path path = fs::absolute(folder).lexically_normal();
    if (path.filename().empty()) path = path.parent_path();  // a slash at the end
    std::string name = path.filename().native();
    if (path.parent_path().filename() == "snapshots") {
        const std::string repository = path.parent_path().parent_path().filename().native();
        if (repository.starts_with("models--")) name = repository.substr(repository.rfind("--") + 2);
    }
    return gguf::printable(name, 200);
}

void add_general(const fs::path &folder, Matrices matrices, const Safetensors &weights, Plan &plan) {
    plan.metadata().add("general.name", name_of(folder));
    const auto has = [&](std::string_view dtype) {
        return std::ranges::any_of(weights.tensors(),
                                   [&](const auto &entry) { return entry.second.dtype == dtype; });
    };
    if (matrices == Matrices::AsStored)
        matrices = has("BF16") ? Matrices::BF16 : has("F16") ? Matrices::F16 : Matrices::F32;
    plan.metadata().add("general.file_type", uint32_t(matrices == Matrices::F32   ? 0
                                                      : matrices == Matrices::F16 ? 1
                                                                                  : 32));
}

// The publisher's sampling settings (engine/completion/file_sampling.h).
void add_sampling(const fs::path &folder, Plan &plan) {
    std::error_code error;
    if (!fs::exists(folder / "generation_config.json", error)) return;
    const Config config = read_config(folder / "generation_config.json");
    if (!config.flag("do_sample", false)) return;
    if (config.has("temperature"))
        plan.metadata().add("general.sampling.temp", static_cast<float>(config.real("temperature")));
    if (config.has("top_k"))
        plan.metadata().add("general.sampling.top_k", static_cast<int32_t>(config.whole("top_k")));
    for (const char *const key : {"top_p", "min_p"})
        if (config.has(key))
            plan.metadata().add(std::string("general.sampling.") + key, static_cast<float>(config.real(key)));
}

}  // namespace

Plan plan_conversion(const fs::path &folder, const Safetensors &weights, Matrices matrices) {
    const Config whole = read_config(folder / "config.json");
    const Family &family = family_of(whole);
    check_quantization(whole, family);
    Config config = whole.has("text_config") ? whole.object("text_config") : whole;
    config.add_defaults(text::parse_json(family.defaults));
    Plan plan(weights, std::string(family.architecture), matrices);
    add_general(folder, matrices, weights, plan);
    add_sampling(folder, plan);
    Decoder decoder(plan, config);
    family.convert(decoder);
    plan.check_all_used(is_other_part);
    if (std::ranges::any_of(weights.tensors(), [](const auto &entry) {
            return is_other_part(entry.first) && !entry.first.ends_with("inv_freq");
        }))
        plan.note("only the text model is converted, without its parts for images, sound and drafts");
    const auto rows = static_cast<uint64_t>(decoder.vocabulary());
    for (std::string &note : import_tokenizer(folder, whole, rows, plan.metadata()))
        plan.note(std::move(note));
    return plan;
}

}  // namespace runnel::convert
