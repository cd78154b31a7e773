// `runnel quantize --target-size`: measures what each type does to each tensor, and chooses.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/commands/io.h"
#include "engine/commands/quantize/quantize.h"
#include "engine/commands/quantize/refine.h"
#include "engine/quantize/type_search.h"

namespace runnel::commands {

struct TargetResult {
    std::vector<quantize::OpenTensor> tensors;
    quantize::TypeChoice choice;
    bool is_measured;  // the sensitivity; then damages are KL divergences
    bool is_size;      // the target; otherwise bits per weight
    quantize::Cost cost;
    std::optional<double> divergence;  // the target of --target-kl
    std::optional<HeldOut> held_out;   // the chosen model, if it was measured
};

// Shows progress. Throws UsageError, InputError, QuantizeError, OutputError, and Interrupted after Ctrl-C.
TargetResult choose_types_for(const QuantizeOptions &options, const gguf::File &source,
                              const quantize::QuantizeRequest &request, Io &io);

std::string target_text(const TargetResult &result);  // one line
std::string report_text(const TargetResult &result);  // a table
nlohmann::ordered_json target_json(const TargetResult &result);

// The type of one tensor by name ("Q4_K"); `option` is for the message. Throws UsageError.
gguf::Type type_named(const std::string &name, const std::string &option);

}  // namespace runnel::commands
