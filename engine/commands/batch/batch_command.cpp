// The options of `batch`.
#include <memory>

#include "engine/commands/cli/shared_options.h"
#include "engine/commands/commands.h"
#include "engine/commands/sandbox/sandbox_option.h"
#include "engine/commands/stored_prompts.h"

namespace runnel::commands {

Command batch_command() {
    Command command{.name = "batch",
                    .usage = "MODEL",
                    .summary = "many prompts: JSONL or lines in, JSONL out",
                    .description =
                        "Answers many prompts, several at a time. Every line of the input is a JSON "
                        "object with \"prompt\" or \"messages\", or a line of an OpenAI batch file; "
                        "its settings override the options. Every line of the output is an answer.",
                    .examples = {"batch model.gguf -i prompts.jsonl -o answers.jsonl",
                                 "batch model.gguf -i prompts.jsonl -o answers.jsonl --resume",
                                 "batch model.gguf --lines -n 50 < questions.txt"}};
    auto o = std::make_shared<BatchOptions>();
    OptionTable &table = command.options;
    table.in_group(Group::Prompt);
    table.text("-i,--input", o->input, "one JSON object per line (default: standard input)").takes("FILE");
    table.flag("--lines", o->lines, "every line is a prompt as it stands, not JSON");
    table
        .add("--shard", "I/N", "only the I-th of every N lines, I from 1 on",
             [o = o.get()](const std::string &text) { o->shard = parse_shard(text); })
        .rare();
    table.flag("--raw", o->raw, "complete prompts as they stand, without the chat template");
    add_system_options(table, o->system, o->system_file);
    add_template_options(table, o->chat, o->show_thinking);
    add_generation_options(table, o->generation);
    add_model_options(table, o->model);
    table.number("-np,--parallel", o->parallel, whole_numbers(1, 4096),
                 "maximum number of answers computed at a time");
    add_overflow_option(table, o->overflow);
    add_prompt_store_option(table, o->store);
    add_draft_options(table, o->draft);
    table.in_group(Group::Output);
    table
        .text("-o,--output,--output-file", o->output,
              "where the answers go (default: standard output, also -)")
        .takes("FILE");
    table.flag("--unordered", o->unordered, "answers as they are done, not in the order of the input");
    table.flag("--resume", o->resume, "continue the output of a run that was interrupted or killed");
    table.flag("--force", o->force, "with --resume: continue even if the model, options or rows have changed")
        .rare();
    table.flag(
        "--timings", o->timings,
        "with every answer its times: \"timings\" (queued_ms, ttft_ms, prefill_ms, decode_ms, tpot_ms)");
    table.flag("--explain", o->explain,
               "at the end, on standard error: where the cells of the KV cache went, compared with reserving "
               "contexts, and a map of its pages");
    add_logprob_options(table, o->generation);
    add_stats_options(table, o->stats);
    command.writes_files = true;
    const Confine confine = add_sandbox_option(table);
    command.call = [o, confine](const Words &words, Io &io) {
        o->model.path = words.model;
        if (o->output == "-" || o->output == "/dev/stdout") o->output.reset();
        confine(
            {{o->model.path, o->draft.model, o->system_file.value_or(""), o->chat.file.value_or(""),
              o->chat.tools.value_or(""), o->input.value_or(""),
              o->generation.constraint.grammar.value_or(""), o->generation.constraint.schema.value_or("")},
             {o->stats.file, o->output.value_or(""), prompts_output(o->store)}},
            gpu_wish(o->model, o->draft));
        return batch(*o, io);
    };
    return command;
}

}  // namespace runnel::commands
