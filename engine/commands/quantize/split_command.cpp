// The options of `runnel split` and `runnel merge`.
#include <memory>

#include "engine/commands/cli/command.h"
#include "engine/commands/quantize/split.h"
#include "engine/commands/sandbox/sandbox_option.h"

namespace runnel::commands {
namespace {

// What a run may write: files beside the one named, or beside the model.
std::string output_of(const SplitOptions &options) {
    if (options.dry_run) return "";
    // (Where MODEL is a link, the outputs are beside the link.)
    return options.destination.empty() ? options.source + ".part" : options.destination;
}

}  // namespace

Command split_command() {
    Command command{
        .name = "split",
        .usage = "MODEL",
        .summary = "a model file in several parts",
        .description =
            "Writes MODEL as NAME-00001-of-0000N.gguf and so on, which every runner opens by the "
            "first part. The parts appear when all are complete; MODEL stays.",
        .examples = {"split model.gguf --size 4G", "split model.gguf --tensors 128 -o parts/model",
                     "split model.gguf --size 2G --dry-run"},
        .writes_files = true};
    auto o = std::make_shared<SplitOptions>();
    auto size = std::make_shared<bool>(false);
    OptionTable &table = command.options;
    table.in_group(Group::Output);
    table.add("--size", "SIZE",
              "tensor data per part at most, as 800M or 4G; a larger tensor is a part of its own",
              [o, size](const std::string &text) {
                  o->limits.bytes = static_cast<uint64_t>(byte_size(text, int64_t{1} << 50));
                  if (o->limits.bytes == 0) throw UsageError("--size: a part cannot hold 0 bytes");
                  *size = true;
              });
    table.add("--tensors", "N", "tensors per part at most", [o, size](const std::string &text) {
        o->limits.tensors = static_cast<size_t>(number_in(whole_numbers(1, 1 << 30), text));
        *size = true;
    });
    table.text("-o,--output", o->destination, "the parts' names begin with this; by default, as MODEL's")
        .takes("NAME");
    table.flag("--metadata-apart", o->metadata_apart, "the first part holds the metadata alone");
    table.flag("--dry-run", o->dry_run, "print the parts, write nothing");
    table.flag("--json", o->json, "with --dry-run: as JSON");
    const Confine confine = add_sandbox_option(table);
    command.call = [o, size, confine](const Words &words, Io &io) {
        o->limits.has_tensors_in_first = !o->metadata_apart;
        if (!*size && !o->metadata_apart)
            throw UsageError("split needs --size SIZE or --tensors N: how much a part may hold");
        o->source = words.model;
        confine({{o->source}, {output_of(*o)}}, "cpu");
        return split_model(*o, io);
    };
    return command;
}

Command merge_command() {
    Command command{
        .name = "merge",
        .usage = "MODEL",
        .summary = "the parts of a model as one file",
        .description =
            "Writes the parts of MODEL, any of which may be named, as one file. It appears "
            "when it is complete; the parts stay.",
        .examples = {"merge model-00001-of-00003.gguf", "merge model-00001-of-00003.gguf -o one.gguf"},
        .writes_files = true};
    auto o = std::make_shared<SplitOptions>();
    OptionTable &table = command.options;
    table.in_group(Group::Output);
    table.text("-o,--output", o->destination, "the file; by default, MODEL's name without its number")
        .takes("FILE");
    const Confine confine = add_sandbox_option(table);
    command.call = [o, confine](const Words &words, Io &io) {
        o->source = words.model;
        confine({{o->source}, {output_of(*o)}}, "cpu");
        return merge_model(*o, io);
    };
    return command;
}

}  // namespace runnel::commands
