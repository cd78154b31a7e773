// The options of `compare`, which is `bench --compare` with the files as arguments.
#include <algorithm>
#include <memory>

#include "engine/commands/bench/bench_exhibits.h"
#include "engine/commands/cli/shared_options.h"
#include "engine/commands/sandbox/sandbox_option.h"

namespace runnel::commands {

Command compare_command() {
    Command command{
        .name = "compare",
        .usage = "MODEL OTHER...",
        .summary = "models side by side: size, speed, perplexity, KL divergence",
        .description =
            "Models side by side: size and speed, taking turns, and with -f FILE the perplexity on "
            "a text and how far the predictions are from the first model's.",
        .examples = {"compare f16.gguf q4_k_m.gguf -f text.txt",
                     "compare f16.gguf q8_0.gguf q4_0.gguf --json",
                     "compare a.gguf b.gguf -f text.txt --plot compare.svg"}};
    command.operands_now = [](size_t words) { return std::max<size_t>(words, 2) - 1; };
    command.operands_are_models = true;
    auto o = std::make_shared<BenchOptions>();
    auto exhibit = std::make_shared<ExhibitOptions>();
    OptionTable &table = command.options;
    table.in_group(Group::Prompt);
    table.text("-f,--file", o->file, "compare the quality on this text; -: standard input").takes("FILE");
    add_prompt_and_answer(table, *o, "tokens of the prefill and of the decoding that are timed (128,32)");
    table.number("-r,--repetitions", o->repetitions, whole_numbers(1, 10000), "turns of each model");
    add_model_options(table, o->model);
    table.in_group(Group::Output);
    table.add("--json", "", "the result as JSON", [o = o.get()](const std::string &text) {
        if (truth(text)) o->output = BenchOptions::Output::JsonObject;
    });
    table.text("--plot", exhibit->plot, "write the plot to this SVG file").takes("FILE.svg");
    command.writes_files = true;
    const Confine confine = add_sandbox_option(table);
    command.call = [o, exhibit, confine](const Words &words, Io &io) {
        o->model.path = words.model;
        o->variants = {o->model};
        exhibit->compare = words.operands;
        std::vector<std::string> inputs = words.operands;
        inputs.insert(inputs.end(), {o->model.path, o->file.value_or("")});
        confine({inputs, {exhibit->plot}}, o->model.device);
        return bench_compare(*o, *exhibit, io);
    };
    return command;
}

}  // namespace runnel::commands
