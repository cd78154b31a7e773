#include "engine/commands/sandbox/sandbox_option.h"

#include <memory>

#include "kernels/process_group.h"

namespace runnel::commands {

Confine add_sandbox_option(OptionTable &table) {
    auto off = std::make_shared<bool>(false);
    table
        .flag("--no-sandbox", *off,
              "do not confine the process. Confined, it opens only the named files and computed prompts "
              "(--prompt-cache; a chat: any file), starts no "
              "programs and has no network; runs that may use a GPU are never confined")
        .rare();
    return [off](const SandboxPaths &paths, const std::string &device) {
        if (*off) return stay_outside("--no-sandbox");
        if (may_use_gpu(device)) return stay_outside("a GPU may be used");
        enter_sandbox(paths);
    };
}

bool on_several_processes(const ModelOptions &model) {
    return decode::runs_all_layers(model.split) && kernels::started_together() > 1;
}

std::string gpu_wish(const ModelOptions &model, const DraftFlags &draft) {
    return model.device == "cpu" && !draft.model.empty() ? draft.device : model.device;
}

}  // namespace runnel::commands
