// --no-sandbox, for the commands that confine themselves.
#pragma once

#include <functional>
#include <string>

#include "engine/commands/cli/option.h"
#include "engine/commands/options.h"
#include "engine/commands/sandbox/sandbox.h"

namespace runnel::commands {

// Confines the process, unless --no-sandbox was given or `device` (a value of --device) may be a GPU.
using Confine = std::function<void(const SandboxPaths &paths, const std::string &device)>;

Confine add_sandbox_option(OptionTable &table);
// Whether processes that were started together run the model. Such a run stays outside of the sandbox: the ranks share
// memory and open connections.
bool on_several_processes(const ModelOptions &model);
// The --device that decides whether a GPU may be used: the draft model's if the model runs on the CPU, otherwise the
// model's.
std::string gpu_wish(const ModelOptions &model, const DraftFlags &draft);

}  // namespace runnel::commands
