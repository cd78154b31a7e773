// The commands that manage models: `pull`, `list`, `rm`.
#include <memory>

#include "engine/commands/cli/command.h"
#include "engine/commands/models/list.h"
#include "engine/commands/models/pull.h"
#include "engine/commands/sandbox/sandbox_option.h"
#include "gguf/printable.h"

namespace runnel::commands {

Command pull_command() {
    Command command{
        .name = "pull",
        .usage = "USER/REPO[:QUANT]",
        .summary = "download a model from Hugging Face",
        .description =
            "Downloads a model from Hugging Face into its cache, which Hugging Face's own programs and "
            "llama.cpp share, and prints the file's path. Without QUANT: Q4_K_M, else Q8_0, else the first "
            "model. USER/REPO/FILE.gguf names a file. An interrupted download continues where it ended; "
            "every "
            "file's SHA-256 is checked. HF_TOKEN is the token for private and gated models, HF_ENDPOINT "
            "another server, HF_HUB_CACHE another folder; the usual environment variables set proxies.",
        .examples = {"pull Qwen/Qwen3-0.6B-GGUF", "pull ggml-org/gemma-3-1b-it-GGUF:Q4_K_M",
                     "chat $(runnel pull Qwen/Qwen3-0.6B-GGUF:Q8_0)"},
        .model = Command::Model::None,
        .takes_text = true};
    auto o = std::make_shared<DownloadOptions>();
    OptionTable &table = command.options;
    table.number("--connections", o->connections, whole_numbers(1, 16), "maximum number of connections");
    table.number("--retries", o->retries, whole_numbers(0, 1000),
                 "number of consecutive attempts without a new byte before the download fails");
    table.number("--timeout", o->stall_seconds, whole_numbers(1, 3600),
                 "seconds without a byte before reconnecting");
    table.number("--request-bytes", o->range, whole_numbers(1024, 1 << 30), "bytes per request").rare();
    command.call = [o](const Words &words, Io &io) {
        if (!words.text) throw UsageError("no model given: runnel pull USER/REPO[:QUANT]");
        const auto name = parse_hub_name(*words.text);
        if (!name)
            throw UsageError(
                gguf::quoted(*words.text) +
                " names no model on Hugging Face: write USER/REPO, USER/REPO:QUANT or USER/REPO/FILE.gguf");
        io.out.write(pull(*name, *o, io) + "\n");
        return exit_code::kDone;
    };
    return command;
}

Command rm_command() {
    Command command{
        .name = "rm",
        .usage = "NAME",
        .summary = "remove a downloaded model",
        .description =
            "Removes a model of Hugging Face's cache, by the name that runnel list shows, with the files "
            "that no other model uses; USER/REPO alone means all of a repository. Asks first.",
        .examples = {"rm Qwen/Qwen3-0.6B-GGUF:Q8_0", "rm Qwen/Qwen3-0.6B-GGUF --yes"},
        .model = Command::Model::None,
        .takes_text = true};
    auto is_sure = std::make_shared<bool>(false);
    command.options.flag("-y,--yes", *is_sure, "do not ask");
    command.call = [is_sure](const Words &words, Io &io) {
        if (!words.text) throw UsageError("no model given: runnel rm USER/REPO[:QUANT]");
        return remove_model(*words.text, *is_sure, io);
    };
    return command;
}

Command list_command() {
    Command command{.name = "list",
                    .usage = "",
                    .summary = "the models in this machine's caches",
                    .description =
                        "The models in the caches of Hugging Face, llama.cpp, LM Studio and ollama: a line "
                        "each, with the name that MODEL may be, the size, the type of the weights, the "
                        "family, whether the model fits into memory with a context of 4096 tokens (gpu: into "
                        "that of a GPU), and the file. A file that cannot be run is listed with the reason.",
                    .examples = {"list", "list --json"},
                    .model = Command::Model::None};
    auto json = std::make_shared<bool>(false);
    command.options.in_group(Group::Output);
    command.options.flag("--json", *json, "as JSON");
    const Confine confine = add_sandbox_option(command.options);
    command.call = [json, confine](const Words &, Io &io) {
        confine({.files = SandboxPaths::Files::All}, "auto");
        return list_models(*json, io);
    };
    return command;
}

}  // namespace runnel::commands
