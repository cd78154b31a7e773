// Runs a short text through the whole model: checks that GPU and CPU agree, and that the model predicts
// English.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/commands/doctor/doctor_report.h"
#include "engine/decode/engine.h"

namespace runnel::commands {

// Logits of a fixed text, [tokens][vocab], and its tokens.
struct TextLogits {
    std::vector<text::TokenId> tokens;
    std::vector<float> logits;
    int32_t vocab = 0;
};

// At most `most` tokens of the text. Throws what Engine and its executor throw.
TextLogits logits_of_text(const decode::EngineOptions &options, int32_t most);

// Checks that the model's logits are finite, and its predictions better than chance. Numbers that are not
// finite are attributed to the file, because the CPU's kernels have been checked before.
Finding check_text(const TextLogits &logits);

// `device`: its name for the finding; `again`: a second run on it.
Finding compare_texts(const TextLogits &cpu, const TextLogits &gpu, const TextLogits &again,
                      const std::string &device);

}  // namespace runnel::commands
