// The options of `run`.
#include <memory>

#include "engine/commands/cli/shared_options.h"
#include "engine/commands/commands.h"
#include "engine/commands/generation.h"
#include "engine/commands/run/escapes.h"
#include "engine/commands/sandbox/sandbox_option.h"
#include "engine/commands/stored_prompts.h"

namespace runnel::commands {

namespace {

// The file of an option whose "-" is stderr.
std::string svg_of(const std::optional<std::string> &path) {
    return path.value_or("-") == "-" ? "" : *path;
}

}  // namespace

Command run_command() {
    Command command{.name = "run",
                    .usage = "MODEL [PROMPT]",
                    .summary = "one prompt in, one answer out (argument, -f FILE or stdin)",
                    .description =
                        "Answers one prompt: the argument, -f FILE, or standard input, which also "
                        "follows an argument. The answer goes to stdout, everything else to stderr.",
                    .examples = {"run model.gguf \"Why is the sky blue?\"",
                                 "run model.gguf --json -n 200 -f question.txt | jq .text",
                                 "run model.gguf \"Summarize this text:\" < article.txt"},
                    .takes_text = true};
    auto o = std::make_shared<RunOptions>();
    auto escapes = std::make_shared<bool>(false);
    OptionTable &table = command.options;
    table.in_group(Group::Prompt);
    table.text("-p,--prompt", o->prompt, "the prompt, instead of the argument");
    table.text("-f,--file", o->file, "the prompt from a file; -: standard input").takes("FILE");
    table.text("--suffix", o->suffix, "infill: the text that follows the answer, or @FILE; implies --raw")
        .takes("TEXT|@FILE");
    table.flag("--raw", o->raw, "complete the text as it stands, without the chat template");
    table.flag("-e,--escape", *escapes, "\\n, \\t, \\\", \\\\ and \\xHH in the prompt are those characters")
        .rare();
    add_system_options(table, o->system, o->system_file);
    add_template_options(table, o->chat, o->show_thinking);
    add_generation_options(table, o->generation);
    table.number("--samples", o->samples, whole_numbers(1, 1024), "number of answers to the same prompt");
    table.number("--beams", o->beams, whole_numbers(1, 256), "search with N beams and print the best answer")
        .rare();
    add_model_options(table, o->model);
    add_overflow_option(table, o->overflow);
    table
        .add("--prompt-cache", "FILE",
             "keep the computed prompt in a file, for the next run that begins with the same text; auto: in "
             "~/.cache/runnel/prompts, where later runs find it (1024 tokens or more)",
             [o = o.get()](const std::string &text) {
                 o->store.is_on = text == "auto";
                 o->prompt_cache.reset();
                 if (text != "auto" && text != "off") o->prompt_cache = text;
             })
        .takes("FILE|auto|off");
    add_prompt_store_size(table, o->store);
    add_draft_options(table, o->draft);
    table.flag("--spec-verify", o->verify_drafts, "also decode without drafts, and fail if the texts differ")
        .rare();
    table.in_group(Group::Output);
    table.flag("--json", o->json, "print one JSON object on stdout");
    add_logprob_options(table, o->generation);
    table
        .text("--trace", o->trace,
              "write a timeline of the run to this file, for chrome://tracing or ui.perfetto.dev")
        .takes("FILE.json")
        .rare();
    table
        .text("--spec-trace", o->spec_trace,
              "draw which tokens came from which pass with drafts, and its time; -: as text on stderr")
        .takes("FILE.svg|-")
        .rare();
    table
        .text("--attention-map", o->attention_map,
              "draw which tokens of prompt and answer attend to which; -: as text on stderr")
        .takes("FILE.svg|-")
        .rare();
    table
        .number("--layer", o->layer, whole_numbers(0, 1 << 16),
                "with --attention-map: the layer, from 0 on (default: the middle one)")
        .rare();
    table
        .number("--head", o->head, whole_numbers(0, 1 << 16),
                "with --attention-map: the head, from 0 on (default: all)")
        .rare();
    table.flag("--echo,--display-prompt", o->echo, "print the prompt first");
    add_stats_options(table, o->stats);
    command.writes_files = true;
    const Confine confine = add_sandbox_option(table);
    command.call = [o, escapes, confine](const Words &words, Io &io) {
        RunOptions &options = *o;
        options.model.path = words.model;
        if (words.text && options.prompt) throw UsageError("two prompts: one as an argument, one with -p");
        if (words.text) options.prompt = words.text;
        if (*escapes && options.prompt) options.prompt = without_escapes(*options.prompt);
        if (options.suffix) options.raw = true;
        const bool suffix_file = options.suffix && options.suffix->starts_with('@');
        options.model.several_processes = true;
        if (on_several_processes(options.model))
            stay_outside("several processes run the model");
        else
            confine(
                {{suffix_file ? options.suffix->substr(1) : "", options.model.path, options.draft.model,
                  options.system_file.value_or(""), options.chat.file.value_or(""),
                  options.chat.tools.value_or(""), options.file.value_or(""),
                  options.generation.constraint.grammar.value_or(""),
                  options.generation.constraint.schema.value_or("")},
                 {options.stats.file, options.prompt_cache.value_or(""), options.trace.value_or(""),
                  svg_of(options.spec_trace), svg_of(options.attention_map), prompts_output(options.store)}},
                gpu_wish(options.model, options.draft));
        options.model = model_for(options.model, options.generation);
        return run(options, io);
    };
    return command;
}

}  // namespace runnel::commands
