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
// Of the devices of model and draft, the one that may be a GPU.
std::string gpu_wish(const ModelOptions &model, const DraftFlags &draft);

}  // namespace runnel::commands
