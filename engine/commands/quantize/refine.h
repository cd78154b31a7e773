// Choices of types measured with the whole model: `runnel quantize --target-kl`, `--rounds`, `--held-out`.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/commands/io.h"
#include "engine/commands/quantize/quantize.h"
#include "engine/decode/engine.h"
#include "engine/measure/sensitivity.h"
#include "engine/quantize/type_search.h"

namespace runnel::commands {

// The source model and its predictions on two texts. Either may be missing.
struct TextModel {
    // Reads the texts and runs the model over them. A text of -f that also judges is split: the last third of its
    // chunks, none if it has one chunk only. Throws UsageError, InputError, Interrupted.
    TextModel(const QuantizeOptions &options, const decode::StopRequest &stop, Io &io);

    decode::Engine engine;
    std::unique_ptr<measure::Sensitivity> choosing, held_out;
    std::string held_out_name;
};

// What was measured on the held-out text.
struct HeldOut {
    std::string text;
    int64_t tokens = 0;                     // scored
    double estimated = 0;                   // of the first choice, by adding damages
    double first = 0;                       // KL divergence of the first choice
    double divergence = 0, error = 0;       // of the final choice, with its standard error
    uint64_t first_bytes = 0;               // as in TypeChoice
    int rounds = 0, kept = 0;               // measurements around the choice; those that changed it
    std::vector<std::string> not_measured;  // changed tensors that the measured model does not use
};

struct Refined {
    quantize::TypeChoice choice;
    HeldOut held_out;
};

struct RefineInput {
    const gguf::File &source;
    const quantize::QuantizeRequest &request;
    const TargetOptions &target;
    TextModel &model;  // with held-out text
    const decode::StopRequest &stop;
    Io &io;
};

// Chooses by `tensors`, measures the whole model on the held-out text, then measures slopes again around the choice,
// on the text for choosing if there is one. A later choice replaces the first only if it measures better: less
// divergence by more than the standard error over chunks, or, with --target-kl, fewer bytes within the limit. Memory: the chosen model and one group of tensors.
// Throws QuantizeError if --target-kl cannot be reached, and Interrupted.
Refined choose_measured(const RefineInput &input, const std::vector<quantize::OpenTensor> &tensors);

std::string held_out_text(const HeldOut &held_out);  // one line
nlohmann::ordered_json held_out_json(const HeldOut &held_out);

}  // namespace runnel::commands
