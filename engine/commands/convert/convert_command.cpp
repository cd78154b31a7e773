// `runnel convert`: a Hugging Face folder as a GGUF file.
#include <filesystem>
#include <memory>

#include "engine/commands/cli/command.h"
#include "engine/commands/figures.h"
#include "engine/commands/quantize/model_output.h"
#include "engine/commands/sandbox/sandbox_option.h"
#include "engine/convert/convert.h"
#include "engine/convert/families.h"
#include "gguf/file.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

namespace fs = std::filesystem;

struct ConvertOptions {
    std::string folder, destination;
    convert::Matrices matrices = convert::Matrices::AsStored;
    bool dry_run = false;
};

// The files of a folder that a conversion may read.
std::vector<std::string> files_of(const fs::path &folder) {
    constexpr size_t kMostFiles = 10'000;
    std::error_code error;
    if (!fs::is_directory(folder, error)) {
        if (!fs::exists(folder, error))
            throw UsageError(gguf::printable(folder.native(), 4096) + ": no such folder");
        throw UsageError(gguf::printable(folder.native(), 4096) +
                         ": is a file; convert takes the folder of a model with config.json and safetensors");
    }
    std::vector<std::string> files{(folder / "config.json").native()};
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
        const std::string ending = entry->path().extension().native();
        if (ending == ".json" || ending == ".jinja" || ending == ".safetensors")
            files.push_back(entry->path().native());
        if (files.size() > kMostFiles)
            throw UsageError(gguf::printable(folder.native(), 4096) + ": holds too many files for a model");
    }
    return files;
}

int convert_folder(const ConvertOptions &options, Io &io) {
    const fs::path folder = options.folder, destination = options.destination;
    const convert::Safetensors weights = convert::Safetensors::open(folder);
    convert::Plan plan = convert::plan_conversion(folder, weights, options.matrices);
    for (const std::string &note : plan.notes()) io.note(note);
    const std::string summary =
        plan.architecture() + ", " + std::to_string(plan.tensors()) + " tensors, " + size_text(plan.bytes());
    if (options.dry_run) {
        io.out.write(summary + "\n");
        return exit_code::kDone;
    }
    check_destination(destination, io.overwrite);
    check_space(plan.bytes(), destination);
    const int code =
        with_bar("converting", plan.bytes(), io, [&](const std::function<bool(uint64_t)> &progress) {
            return plan.write(destination, {.overwrite = io.overwrite}, progress);
        });
    if (code == exit_code::kDone) io.note(gguf::printable(destination.native(), 1024) + ": " + summary);
    return code;
}

std::string description() {
    std::string names;
    for (const convert::Family &family : convert::families())
        names += (names.empty() ? "" : ", ") + std::string(family.name);
    return "Writes the model in FOLDER, as Hugging Face's programs store it (config.json, safetensors, "
           "tokenizer.json), "
           "as the GGUF file OUT. OUT appears when it is complete. Matrices keep the type that they have in "
           "the folder; runnel quantize makes them smaller. What has no counterpart in GGUF is refused, "
           "never left "
           "out. Models that can be converted: " +
           names + ".";
}

}  // namespace

Command convert_command() {
    static const std::string text = description();
    Command command{.name = "convert",
                    .usage = "FOLDER OUT",
                    .summary = "a Hugging Face folder as a model file",
                    .description = text,
                    .examples = {"convert ./Qwen3-0.6B qwen3-0.6b.gguf", "convert ./Qwen3-0.6B x --dry-run",
                                 "convert ./gemma-3-1b-it gemma.gguf --type f32"},
                    .model = Command::Model::None,
                    .writes_files = true};
    auto o = std::make_shared<ConvertOptions>();
    OptionTable &table = command.options;
    table.in_group(Group::Output);
    table.choice("--type", o->matrices,
                 {{"auto", convert::Matrices::AsStored},
                  {"f32", convert::Matrices::F32},
                  {"f16", convert::Matrices::F16},
                  {"bf16", convert::Matrices::BF16}},
                 "type of the matrices; auto: as stored. Vectors and norms are always F32");
    table.flag("--dry-run", o->dry_run, "check everything and print the size, write nothing");
    command.operands_now = [](size_t words) -> size_t {
        if (words != 2) throw UsageError("usage: runnel convert FOLDER OUT");
        return 2;
    };
    const Confine confine = add_sandbox_option(table);
    command.call = [o, confine](const Words &words, Io &io) {
        if (words.operands.size() != 2) throw UsageError("usage: runnel convert FOLDER OUT");
        o->folder = words.operands[0];
        o->destination = words.operands[1];
        confine({files_of(o->folder), {o->dry_run ? "" : o->destination}}, "cpu");
        return convert_folder(*o, io);
    };
    return command;
}

}  // namespace runnel::commands
