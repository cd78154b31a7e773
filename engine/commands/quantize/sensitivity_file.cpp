#include "engine/commands/quantize/sensitivity_file.h"

#include <filesystem>
#include <span>
#include <string_view>

#include "engine/commands/json.h"
#include "gguf/output_file.h"
#include "gguf/printable.h"
#include "gguf/read_files.h"

namespace runnel::commands {
namespace {

constexpr std::string_view kFormat = "runnel-sensitivity-1";

}  // namespace

SensitivityFile SensitivityFile::load(const std::string &path) {
    gguf::note_read(std::filesystem::path(path));
    const auto fail = [&](const std::string &what) {
        throw InputError(gguf::printable(path, 1024) + ": " + what);
    };
    SensitivityFile file;
    try {
        const Json json = parse_json(read_all(path, 0));
        const Json *format = text::find_member(json, "format"), *tensors = text::find_member(json, "tensors");
        if (!format || *format != kFormat || !tensors || !tensors->is_array())
            fail("not a file of quantize --sensitivity");
        for (const Json &tensor : *tensors) {
            const Json *name = text::find_member(tensor, "name"),
                       *elements = text::find_member(tensor, "elements"),
                       *slope = text::find_member(tensor, "slope");
            if (!name || !name->is_string() || !elements || !elements->is_number_integer() || !slope ||
                !slope->is_number())
                fail("an entry without name, elements and slope");
            const Entry entry{elements->get<int64_t>(), slope->get<double>()};
            if (!(entry.slope >= 0 && entry.slope <= 1e30))
                fail(gguf::quoted(name->get<std::string>()) + ": the slope must be from 0 to 1e30");
            file.tensors[name->get<std::string>()] = entry;
        }
    } catch (const JsonError &error) {
        fail(error.what());
    }
    return file;
}

void SensitivityFile::save(const std::string &path, bool overwrite) const {
    Json json = {{"format", kFormat}, {"text", text}, {"tokens", tokens}, {"tensors", Json::array()}};
    for (const auto &[name, entry] : tensors)
        json["tensors"].push_back({{"name", name}, {"elements", entry.elements}, {"slope", entry.slope}});
    const std::string written = dump(json, 1);
    gguf::OutputFile file(path, {.overwrite = overwrite});
    file.write(std::as_bytes(std::span(written)));
    file.commit();
}

}  // namespace runnel::commands
