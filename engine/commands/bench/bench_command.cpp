// The options of `bench`.
#include <memory>

#include "engine/commands/cli/shared_options.h"
#include "engine/commands/commands.h"

namespace runnel::commands {

Command bench_command() {
    Command command{.name = "bench",
                    .usage = "MODEL",
                    .summary = "prefill and decode speed against what the hardware allows",
                    .description =
                        "Measures prefill and decode, and the memory bandwidth in the same run. With "
                        "options of drafts: what drafts gain.",
                    .examples = {"bench model.gguf", "bench model.gguf -p 512 -n 128 -d 0,4096 --json",
                                 "bench model.gguf --sequences 16,32 -p 0"}};
    auto o = std::make_shared<BenchOptions>();
    OptionTable &table = command.options;
    table.in_group(Group::Prompt);
    table.number("-p,--n-prompt", o->prompt, whole_numbers(0, 1 << 24),
                 "tokens of the prefill test; 0: none");
    table.number("-n,--n-gen", o->generate, whole_numbers(0, 1 << 24), "tokens of the decode test; 0: none");
    table.number("-r,--repetitions", o->repetitions, whole_numbers(1, 10000), "how often each");
    table
        .numbers("-d,--depth,--n-depth", o->depths, whole_numbers(0, 1 << 24),
                 "tokens in the cache before it; a list: 0,4096")
        .by_default("0");
    table.numbers("--sequences,-npl", o->sequences, whole_numbers(1, 4096),
                  "also decode so many sequences at a time, against one; a list: 16,32");
    table.flag("--text", o->text, "measure the tokenizer and the chat template instead of the model").rare();
    table.text("-f,--file", o->file, "with --text: also the text of a file").takes("FILE").rare();
    add_model_options(table, o->model);
    add_draft_options(table, o->draft);
    table.in_group(Group::Output);
    table.flag("--json", o->json, "the result as JSON");
    command.call = [o](const Words &words, Io &io) {
        o->model.path = words.model;
        if (o->file && !o->text) throw UsageError("-f is for --text");
        return o->text ? bench_text(*o, io) : bench(*o, io);
    };
    return command;
}

}  // namespace runnel::commands
