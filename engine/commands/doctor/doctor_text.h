// A short text through the whole model: does the GPU say what the CPU says, and does the model know English?
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/commands/doctor/doctor_report.h"
#include "engine/decode/engine.h"

namespace runnel::commands {

// Logits of a fixed text, [tokens][vocab], and what it was.
struct TextLogits {
    std::vector<text::TokenId> tokens;
    std::vector<float> logits;
    int32_t vocab = 0;
};

// At most `most` tokens of the text. Throws what Engine and its executor throw.
TextLogits logits_of_text(const decode::EngineOptions &options, int32_t most);

// Whether the model's numbers are finite, and its guesses better than chance. Numbers that are not finite are
// put down to the file: what the CPU's kernels are worth is known by then.
Finding check_text(const TextLogits &logits);

// `device` is its name for the finding; `again` a second run on it.
Finding compare_texts(const TextLogits &cpu, const TextLogits &gpu, const TextLogits &again,
                      const std::string &device);

}  // namespace runnel::commands
