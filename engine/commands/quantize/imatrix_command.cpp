// The options of `runnel imatrix`.
#include <memory>

#include "engine/commands/cli/command.h"
#include "engine/commands/quantize/imatrix.h"
#include "engine/commands/sandbox/sandbox_option.h"

namespace runnel::commands {

Command imatrix_command() {
    Command command{
        .name = "imatrix",
        .usage = "MODEL -f TEXT -o FILE",
        .summary = "importance of a model's columns, for quantize",
        .description =
            "Runs a text through the model on the CPU and writes how much each column of its matrices "
            "matters, in llama-imatrix's form, for quantize --imatrix.",
        .examples = {"imatrix model-f16.gguf -f calibration.txt -o model.imatrix",
                     "imatrix model-f16.gguf -f more.txt -o all.imatrix --merge model.imatrix",
                     "imatrix --merge a.imatrix --merge b.imatrix -o both.imatrix",
                     "imatrix --show model.imatrix"}};
    auto o = std::make_shared<ImatrixOptions>();
    OptionTable &table = command.options;
    table.in_group(Group::Prompt);
    table.text("-f,--file", o->text, "the text; -: standard input").takes("FILE");
    table.number("-c,--ctx-size", o->chunk_size, whole_numbers(16, 1 << 20), "tokens per chunk");
    table
        .add("--chunks", "N", "number of chunks to use; -1: all",
             [o = o.get()](const std::string &text) {
                 o->chunks = static_cast<int64_t>(number_in(whole_numbers(-1), text));
             })
        .by_default("-1");
    table.flag("--process-output", o->with_output, "also the output matrix");
    table.in_group(Group::Output);
    table.text("-o,--output", o->output, "the file to write").takes("FILE");
    table.list("--merge,--in-file", o->merged, "add the sums of an importance matrix; repeatable")
        .takes("FILE");
    table.text("--show", o->shown, "print the statistics of an importance matrix").takes("FILE");
    table.flag("--json", o->json, "with --show: as JSON");
    table.in_group(Group::Device);
    table.number("-t,--threads", o->threads, whole_numbers(0, 4096), "CPU threads; 0: the physical cores");
    command.needs_no_model = [o] { return !o->shown.empty() || (!o->merged.empty() && o->text.empty()); };
    command.writes_files = true;
    const Confine confine = add_sandbox_option(table);
    command.call = [o, confine](const Words &words, Io &io) {
        o->model = words.model;
        std::vector<std::string> inputs = o->merged;
        inputs.insert(inputs.end(), {o->model, o->text, o->shown});
        confine({inputs, {o->output}}, "cpu");
        return imatrix(*o, io);
    };
    return command;
}

}  // namespace runnel::commands
