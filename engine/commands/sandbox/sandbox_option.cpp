#include "engine/commands/sandbox/sandbox_option.h"

#include <memory>

namespace runnel::commands {

Confine add_sandbox_option(OptionTable &table) {
    auto off = std::make_shared<bool>(false);
    table
        .flag("--no-sandbox", *off,
              "do not confine the process to the files named here, without programs and network (where a GPU "
              "may be used, it never is)")
        .rare();
    return [off](const SandboxPaths &paths, const std::string &device) {
        if (*off) return stay_outside("--no-sandbox");
        if (may_use_gpu(device)) return stay_outside("a GPU may be used");
        enter_sandbox(paths);
    };
}

}  // namespace runnel::commands
