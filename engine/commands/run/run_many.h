// `run --samples N` and `run --beams N`: several answers to one prompt, whose cache they share.
#pragma once

#include <span>
#include <string>

#include "engine/commands/io.h"
#include "engine/commands/options.h"
#include "engine/decode/engine.h"
#include "engine/decode/speculation/drafting.h"
#include "engine/decode/stop_request.h"

namespace runnel::commands {

struct ManyAnswers {
    decode::Engine &engine;
    std::span<const text::TokenId> prompt;
    const std::string &text;  // of the prompt, for --echo
    const decode::SamplingOptions &sampling;
    const decode::GenerationOptions &limits;
    decode::StopRequest &stop;
    decode::Drafting *drafts = nullptr;  // of the samples
};

// Writes the answers and returns the exit code. As text: samples one after another, between them a line
// "---"; of beams, the best. As JSON: what `run` has, of the first sample or the best beam, and "samples" or
// "beams", a list with the "logprob" of each: the sum over its tokens, the one that ended it included, in the
// model's own distribution. "best" is the index of the sample with the best mean; beams have it as "score".
int run_many(const RunOptions &options, const ManyAnswers &what, Io &io);

}  // namespace runnel::commands
