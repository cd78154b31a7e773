// The options of `batch`.
#include <sys/stat.h>

#include <cstdlib>
#include <memory>

#include "engine/commands/batch/batch_join.h"
#include "engine/commands/batch/batch_output.h"
#include "engine/commands/batch/shard_source.h"
#include "engine/commands/cli/shared_options.h"
#include "engine/commands/commands.h"
#include "engine/commands/sandbox/sandbox_option.h"
#include "engine/commands/stored_prompts.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

// Options of the command line that become others before the run.
struct ShardOptions {
    bool given = false;
    std::optional<AutoShard> automatic;
    bool join = false;
};

std::optional<std::string> variable(const char *name) {
    const char *value = std::getenv(name);
    return value ? std::optional<std::string>(value) : std::nullopt;
}

bool is_special(const std::string &path) {
    struct stat status {};
    return stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
}

// Sets the shard and the name of its output, and says which it is.
void take_shard(const ShardOptions &given, BatchOptions &o, Io &io) {
    if (!given.given) return;
    std::string note;
    if (given.automatic) {
        if (!o.output) throw UsageError("--shard auto needs -o FILE: every shard writes a file of its own");
        const ShardChoice choice = choose_shard(*given.automatic, variable);
        o.shard = choice.shard;
        note = ", from " + choice.source;
    }
    const std::string path = o.output && !is_special(*o.output)
                                 ? shard_path(*o.output, o.shard, given.automatic.has_value())
                                 : o.output.value_or("");
    if (o.output && path != *o.output) {
        o.output = path;
        note += "; the answers go to " + gguf::printable(path, 4096);
    }
    if (given.automatic && !o.resume && is_restarted(variable)) {
        o.resume = true;
        note += "; --resume because SLURM_RESTART_COUNT says that the job was started again";
    }
    if (!note.empty())
        io.note("shard " + std::to_string(o.shard.part) + "/" + std::to_string(o.shard.parts) + note);
}

int join(const BatchOptions &o, const ShardOptions &given, const Arguments &outputs, const Confine &confine,
         Io &io) {
    if (o.input || o.resume || given.given)
        throw UsageError("--join takes only outputs of shards, -o, --force and --overwrite");
    std::vector<std::string> inputs = outputs;
    for (const std::string &path : outputs) inputs.push_back(manifest_of(path));
    confine({inputs, {o.output.value_or("")}}, "cpu");
    return join_batch({.shards = outputs, .output = o.output, .force = o.force}, io);
}

}  // namespace

Command batch_command() {
    Command command{
        .name = "batch",
        .usage = "MODEL | --join OUT...",
        .summary = "many prompts: JSONL or lines in, JSONL out",
        .description =
            "Answers many prompts, several at a time. Every line of the input is a JSON "
            "object with \"prompt\" or \"messages\", or a line of an OpenAI batch file; "
            "its settings override the options. Every line of the output is an answer. With --shard, "
            "several machines share the lines; --join puts their outputs together.",
        .examples = {"batch model.gguf -i prompts.jsonl -o answers.jsonl",
                     "batch model.gguf -i prompts.jsonl -o answers.jsonl --resume",
                     "batch model.gguf --lines -n 50 < questions.txt",
                     "batch model.gguf -i prompts.jsonl -o out.jsonl --shard auto",
                     "batch --join out.*-of-8.jsonl -o answers.jsonl"}};
    auto o = std::make_shared<BatchOptions>();
    auto sharding = std::make_shared<ShardOptions>();
    OptionTable &table = command.options;
    table.in_group(Group::Prompt);
    table.text("-i,--input", o->input, "one JSON object per line (default: standard input)").takes("FILE");
    table.flag("--lines", o->lines, "every line is a prompt as it stands, not JSON");
    table
        .add("--shard", "I/N|auto|auto/N",
             "only the I-th of every N lines, I from 1 on; in the name of -o, {shard} becomes I-of-N. auto: "
             "I and N from Slurm, Open MPI, PMI, or with auto/N from GNU parallel or Kubernetes; each shard "
             "writes a file of its own (out.jsonl: out.I-of-N.jsonl)",
             [o = o.get(), s = sharding.get()](const std::string &text) {
                 s->given = true;
                 s->automatic = parse_auto_shard(text);
                 if (!s->automatic) o->shard = parse_shard(text);
             })
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
    table
        .flag(
            "--force", o->force,
            "with --resume: continue even if the model, options or rows have changed; with --join: join even "
            "if the shards have different settings")
        .rare();
    table
        .flag(
            "--join", sharding->join,
            "put the outputs of all shards together in the order of the input, after checking that every row "
            "is there once; otherwise lists the shards to run")
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
    command.needs_no_model = [sharding] { return sharding->join; };
    command.operands_now = [sharding](size_t words) { return sharding->join ? words : 0; };
    command.call = [o, sharding, confine](const Words &words, Io &io) {
        o->model.path = words.model;
        if (o->output == "-" || o->output == "/dev/stdout") o->output.reset();
        if (sharding->join) return join(*o, *sharding, words.operands, confine, io);
        take_shard(*sharding, *o, io);
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
