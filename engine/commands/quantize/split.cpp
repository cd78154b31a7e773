#include "engine/commands/quantize/split.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/commands/figures.h"
#include "engine/commands/quantize/model_output.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

namespace fs = std::filesystem;

std::string shown(const fs::path &path) {
    return gguf::printable(path.native(), 1024);
}

struct PlannedPart {
    fs::path path;
    size_t tensors = 0;
    uint64_t bytes = 0;  // of tensor data
};

std::vector<PlannedPart> planned(const gguf::File &source, const std::vector<size_t> &parts,
                                 const fs::path &destination) {
    std::vector<PlannedPart> result;
    for (const fs::path &path : quantize::output_paths(destination, parts.back() + 1))
        result.push_back({path});
    for (size_t i = 0; i < parts.size(); ++i) {
        ++result[parts[i]].tensors;
        result[parts[i]].bytes += source.tensors()[i].bytes;
    }
    return result;
}

void print_plan(const std::vector<PlannedPart> &plan, bool json, Io &io) {
    if (json) {
        auto parts = nlohmann::ordered_json::array();
        for (const PlannedPart &part : plan)
            parts.push_back({{"file", gguf::printable(part.path.native(), 4096)},
                             {"tensors", part.tensors},
                             {"bytes", part.bytes}});
        io.out.write(nlohmann::ordered_json{{"parts", std::move(parts)}}.dump() + "\n");
        return;
    }
    std::string text;
    for (const PlannedPart &part : plan)
        text += format("%12s  %6zu tensors  ", size_text(part.bytes).c_str(), part.tensors) +
                shown(part.path) + "\n";
    io.out.write(text);
}

uint64_t tensor_bytes(const gguf::File &source) {
    uint64_t bytes = 0;
    for (const gguf::Tensor &tensor : source.tensors()) bytes += tensor.bytes;
    return bytes;
}

int copy(const gguf::File &source, const std::vector<size_t> &parts, const fs::path &destination,
         std::string_view verb, Io &io) {
    const uint64_t bytes = tensor_bytes(source);
    check_padding(source);
    check_space(bytes, destination);
    return with_bar(verb, bytes, io, [&](const std::function<bool(uint64_t)> &progress) {
        return quantize::copy_model(source, parts, destination, {.overwrite = io.overwrite}, progress);
    });
}

}  // namespace

int split_model(const SplitOptions &options, Io &io) {
    const gguf::File source = gguf::File::open(options.source);
    const std::vector<size_t> parts = quantize::divide(source, options.limits);
    if (parts.empty() || parts.back() == 0)
        throw UsageError(shown(options.source) + ": " + size_text(tensor_bytes(source)) + " in " +
                         std::to_string(source.tensors().size()) +
                         " tensors fit into one file, nothing to split");
    if (parts.back() >= quantize::kMostParts)
        throw UsageError(shown(options.source) + ": would be " + std::to_string(parts.back() + 1) +
                         " files, at most " + std::to_string(quantize::kMostParts) +
                         " are possible; choose a greater size");
    const fs::path destination = options.destination.empty() ? model_stem(source) : options.destination;
    const std::vector<PlannedPart> plan = planned(source, parts, destination);
    if (options.dry_run) {
        print_plan(plan, options.json, io);
        return exit_code::kDone;
    }
    for (const PlannedPart &part : plan) check_destination(part.path, source, io.overwrite);
    const int code = copy(source, parts, destination, "splitting", io);
    if (code == exit_code::kDone)
        io.note(std::to_string(plan.size()) + " files, the first is " + shown(plan.front().path));
    return code;
}

int merge_model(const SplitOptions &options, Io &io) {
    const gguf::File source = gguf::File::open(options.source);
    if (source.parts() == 1)
        throw UsageError(shown(options.source) + ": is one file already, nothing to merge");
    const fs::path destination =
        options.destination.empty() ? model_stem(source) + ".gguf" : options.destination;
    check_destination(destination, source, io.overwrite);
    const int code = copy(source, std::vector<size_t>(source.tensors().size()), destination, "merging", io);
    if (code == exit_code::kDone)
        io.note(shown(destination) + ": " + std::to_string(source.parts()) + " parts, " +
                std::to_string(source.tensors().size()) +
                (source.tensors().size() == 1 ? " tensor, " : " tensors, ") +
                size_text(tensor_bytes(source)));
    return code;
}

}  // namespace runnel::commands
