// Several models side by side: their speed, taking turns, and how far their predictions are from the first one's.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/decode/engine.h"
#include "engine/decode/stop_request.h"
#include "engine/measure/perplexity.h"

namespace runnel::measure {

struct CompareOptions {
    int32_t prompt = 128, generate = 32;  // tokens of a turn
    int32_t turns = 5;
    std::string text = {};  // for the quality; empty: only the speed
    int32_t context = 256;  // of a chunk of the text (perplexity.h)
    int64_t chunks = -1;    // most chunks; -1: all
};

struct ComparedModel {
    double weight_bytes = 0;              // that a token reads
    std::vector<double> prefill, decode;  // tokens per second, one per turn
    // With a text. `divergence` is from the first model, if both have the same vocabulary and tokens.
    std::optional<Perplexity> quality = {};

    // Medians over the turns of this model's rate divided by the first model's in the same turn: other programs slow
    // down both alike.
    double prefill_gain(const ComparedModel &first) const;
    double decode_gain(const ComparedModel &first) const;
};

// Precondition: `engines` is not empty, and each has a context for prompt and answer and for a chunk. Throws
// base::Interrupted, DecodeError and BackendError; DecodeError{BadInput} if the text is shorter than a chunk.
std::vector<ComparedModel> compare_models(std::span<decode::Engine *const> engines,
                                          const CompareOptions &options, const decode::StopRequest &stop,
                                          const std::function<void(const std::string &)> &show);

}  // namespace runnel::measure
