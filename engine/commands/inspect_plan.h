// `inspect --plan`: the memory of a model, or of a bare shape, for several weight formats, cache types and
// sequence counts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/commands/io.h"
#include "engine/commands/options.h"
#include "engine/measure/device_plan.h"

namespace runnel::commands {

struct PlanOptions {
    bool plan = false;
    std::string shape;                            // measure::parse_shape, in place of a file; empty: the file
    int64_t memory = 0;                           // bytes; 0: the table does not show how many sequences fit
    std::string plot;                             // an SVG file; empty: none
    std::vector<measure::PlannedDevice> devices;  // empty: none
    measure::Link link = measure::kLinks[0];      // between these
};

// `file`: the options for the model, context, sequences and cache types. A context of 0 is the model's own,
// or 4096 for a shape. Throws UsageError, gguf::WriteError, and what inspect() throws.
int inspect_plan(const InspectOptions &file, const PlanOptions &options, Io &io);

}  // namespace runnel::commands
