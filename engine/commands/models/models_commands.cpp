// The commands that manage models: `list`.
#include <memory>

#include "engine/commands/cli/command.h"
#include "engine/commands/models/list.h"

namespace runnel::commands {

Command list_command() {
    Command command{.name = "list",
                    .usage = "",
                    .summary = "the models in this machine's caches",
                    .description =
                        "The models in the caches of Hugging Face, llama.cpp, LM Studio and ollama: a line "
                        "each, with the "
                        "name that MODEL may be, the size, the type of the weights, the family, whether the "
                        "model fits into "
                        "memory with a context of 4096 tokens (gpu: into that of a GPU), and the file. A "
                        "file that cannot be "
                        "run is listed with the reason.",
                    .examples = {"list", "list --json"},
                    .model = Command::Model::None};
    auto json = std::make_shared<bool>(false);
    command.options.in_group(Group::Output);
    command.options.flag("--json", *json, "as JSON");
    command.call = [json](const Words &, Io &io) { return list_models(*json, io); };
    return command;
}

}  // namespace runnel::commands
