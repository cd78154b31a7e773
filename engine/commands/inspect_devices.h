// `inspect --plan --devices`: the layers, the context and the predicted speed on devices that need not exist.
#pragma once

#include <string>
#include <vector>

#include "engine/commands/json.h"
#include "engine/measure/device_plan.h"

namespace runnel::commands {

struct PlannedFormat {
    std::string name;                // "the file", "Q4_K"
    std::optional<gguf::Type> type;  // none: the weights as they are
};

// A plan for each format. `request`: its format is replaced.
std::string devices_text(const kernels::Program &program, const std::vector<PlannedFormat> &formats,
                         const measure::DevicePlanRequest &request);
Json devices_json(const kernels::Program &program, const std::vector<PlannedFormat> &formats,
                  const measure::DevicePlanRequest &request);

}  // namespace runnel::commands
